"""One step: the token mean, the clip, the refusal of what is not finite."""

from __future__ import annotations

import math

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from distperf.data.samples import Stream
from distperf.errors import DataError, DistperfError
from distperf.model.dropout import Draws
from distperf.model.loss import IGNORE
from distperf.passes import Serial
from distperf.precision.scaling import LossScale
from distperf.trainer import Scaled, Trainer

CPU = torch.device("cpu")


class OneWeight:
    """An engine around a single weight: the gradient of a sum of losses w * x is the sum of the x."""

    def __init__(self) -> None:
        self.weight = nn.Parameter(torch.ones(()))
        self.parts = [lambda inputs: inputs * self.weight]
        self.optimizer_step = 0
        self.scaled: float | None = None

    def backward(self, loss: Tensor, last: bool) -> None:
        loss.backward()

    def finish(self) -> None:
        pass

    def overflowed(self) -> list[str]:
        return ["weight"]

    def skip(self) -> None:
        self.weight.grad = None

    def grad_norm_sq(self) -> Tensor:
        assert self.weight.grad is not None
        return self.weight.grad.double().square()

    def step(self, lr: float, grad_scale: float) -> None:
        assert self.weight.grad is not None
        self.scaled = float(self.weight.grad) * grad_scale
        self.weight.grad = None


class Given:
    """Micro-batches as given: (values of the counting positions, number of positions without loss)."""

    def __init__(self, *micros: tuple[list[float], int]) -> None:
        self.micros = micros

    def first(self, step: int, micro: int) -> int:
        return 0

    def batch(self, step: int, micro: int) -> tuple[Tensor, Tensor]:
        values, ignored = self.micros[micro]
        return torch.tensor(values + [0.0] * ignored), torch.tensor([0] * len(values) + [IGNORE] * ignored)


def trainer(*micros: tuple[list[float], int], clip: float | None = None) -> Trainer:
    loss_sum = lambda logits, targets: logits[targets != IGNORE].sum()  # noqa: E731
    engine = OneWeight()
    passes = Serial(engine, Given(*micros), loss_sum, len(micros), Draws(1, CPU), CPU)
    return Trainer(engine, passes, Stream(1), lambda step: 0.1 * step, clip)


@pytest.fixture(autouse=True)
def alone():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_loss_and_gradient_are_means_over_tokens_e07():
    """E07: one token of loss 4 and three of loss 1 make 1.75, not the 2.5 of a mean of means."""
    subject = trainer(([4.0], 2), ([1.0, 1.0, 1.0], 0))
    result = subject.step(3)
    assert (result.loss, result.grad_norm, result.tokens, result.lr) == (1.75, 1.75, 4, pytest.approx(0.3))
    assert subject.engine.scaled == pytest.approx(1.75)


def test_the_norm_is_clipped_after_the_mean():
    """grad_clip bounds the norm of the token-mean gradient; what is reported is the norm before."""
    subject = trainer(([4.0, 4.0], 0), clip=1.0)
    assert subject.step(1).grad_norm == 4.0
    assert subject.engine.scaled == pytest.approx(1.0, rel=1e-5)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_not_finite_stops_before_the_update(bad):
    """The step is named, and no weight has changed."""
    subject = trainer(([1.0, bad], 0))
    with pytest.raises(DistperfError, match=r"step 7: loss is .* not finite: weight; .*step 6"):
        subject.step(7)
    assert subject.engine.scaled is None


def test_a_batch_without_targets_is_a_data_error():
    """Nothing to divide by: said, not a division by zero."""
    with pytest.raises(DataError, match="step 2"):
        trainer(([], 3)).step(2)


def test_an_overflow_skips_the_step_and_halves_the_scale():
    """fp16: no weight moves, the metrics say so, and the next step is made with half the scale."""
    subject = trainer(([1.0, math.inf], 0))
    subject.scaled = Scaled(LossScale(), tokens=2)
    result = subject.step(1)
    assert (result.skipped, result.loss_scale, subject.scaled.scale.scale) == (True, 2.0**16, 2.0**15)
    assert subject.engine.scaled is None
    assert subject.engine.weight.grad is None


def test_scaling_changes_no_number():
    """Loss, norm and update with a loss scale are those without: it is a power of two."""
    subject = trainer(([4.0], 2), ([1.0, 1.0, 1.0], 0))
    subject.scaled = Scaled(LossScale(), tokens=6)
    result = subject.step(3)
    assert (result.loss, result.grad_norm, result.skipped) == (1.75, 1.75, False)
    assert subject.engine.scaled == pytest.approx(1.75)


def test_a_scale_at_its_least_stops_the_run_with_names_e10():
    """E10: overflow after overflow ends soon, naming the parameter, not after hours of skipped steps."""
    subject = trainer(([math.inf], 0))
    subject.scaled = Scaled(LossScale(), tokens=1)
    skipped = [subject.step(step).skipped for step in range(1, 21)]
    assert all(skipped)
    with pytest.raises(DistperfError, match=r"loss scale of 1; gradients that are not finite: weight;"):
        subject.step(21)
