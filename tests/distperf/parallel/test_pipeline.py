"""Pipelines on real ranks, against one process: losses and the gradient of every parameter."""

from __future__ import annotations

import dataclasses
import gc
import warnings
from functools import cache

import pytest
import torch
import torch.distributed as dist
from ranks import run_ranks
from torch import Tensor, nn

from distperf.errors import DistperfError
from distperf.model.init import fill_for
from distperf.model.llama import build_model, shared_by_stages
from distperf.model.loss import IGNORE, loss_sum
from distperf.parallel.pipeline import Pipelined
from distperf.parallel.stage import Flow
from distperf.recipe.runspec import ModelSpec
from distperf.recipe.schedules import SCHEDULES, stage_count
from distperf.recipe.stages import held_stages

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400), pytest.mark.xdist_group("pipeline")]

MODEL = ModelSpec("llama", 8, 16, 4, 2, 24, 31, False, 1e4, 1e-5, 0.0)
BATCH, LENGTH = 2, 6
FACTOR = 0.5

Case = tuple[str, tuple[int, ...], int, bool]  # schedule, layers of each stage, micro-batches, tied


class Sampler:
    """Micro-batches with a few targets that do not count; `lengths` makes some shorter."""

    def __init__(self, lengths: tuple[int, ...] = ()) -> None:
        self.lengths = lengths

    def batch(self, step: int, micro: int) -> tuple[Tensor, Tensor]:
        length = self.lengths[micro] if self.lengths else LENGTH
        generator = torch.Generator().manual_seed(100 * step + micro)
        tokens = torch.randint(MODEL.vocab, (BATCH, length + 1), generator=generator)
        inputs, targets = tokens[:, :-1], tokens[:, 1:].clone()
        targets[0, : micro % 3] = IGNORE
        return inputs, targets


class Collector:
    """Stands for an engine: adds up what each backward pass leaves in the parameters."""

    def __init__(self, parts: list[nn.Module]) -> None:
        self.parts = parts
        self.grads: dict[str, Tensor] = {}
        self.collected = self.finished = 0

    def collect(self) -> None:
        self.collected += 1
        for part in self.parts:
            for name, parameter in part.named_parameters():
                if parameter.grad is not None:
                    self.grads[name] = self.grads.get(name, 0) + parameter.grad
                    parameter.grad = None

    def finish(self) -> None:
        self.finished += 1


def filled(model: nn.Module, spec: ModelSpec) -> nn.Module:
    model.to_empty(device="cpu")
    fill = fill_for(spec, 1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(fill(name, parameter.shape, 0, parameter.numel()).view_as(parameter))
    return model


def one_process(spec: ModelSpec, micro_batches: int, step: int) -> tuple[float, int, dict[str, Tensor]]:
    model, total, count = filled(build_model(spec), spec), 0.0, 0
    for micro in range(micro_batches):
        inputs, targets = Sampler().batch(step, micro)
        loss = loss_sum(model(inputs), targets)
        (loss * FACTOR).backward()
        total, count = total + loss.item(), count + int((targets != IGNORE).sum())
    return total, count, {name: p.grad for name, p in model.named_parameters()}


def pipelined(
    spec: ModelSpec, schedule: str, layers: tuple[int, ...], micro_batches: int, sampler: Sampler, **options
) -> tuple[Pipelined, Collector]:
    places = held_stages(layers, schedule, dist.get_world_size(), dist.get_rank())
    engine = Collector([filled(build_model(spec, place), spec) for place in places])
    passes = Pipelined(
        engine,
        places,
        schedule,
        flow=Flow((BATCH, LENGTH), (BATCH, LENGTH, spec.hidden), torch.float32),
        batches=sampler,
        loss_sum=loss_sum,
        accumulation=micro_batches,
        group=dist.group.WORLD,
        device=torch.device("cpu"),
        **options,
    )
    return passes, engine


def compare(
    schedule: str, layers: tuple[int, ...], micro_batches: int, tied: bool
) -> tuple[str, float, float]:
    """Loss and gradients of two steps in a row: relative differences to one process, the largest on this rank."""
    spec = dataclasses.replace(MODEL, tied_embedding=tied)
    passes, engine = pipelined(spec, schedule, layers, micro_batches, Sampler())
    loss_error = grad_error = 0.0
    for step in (1, 2):
        engine.grads = {}
        sums = torch.stack(passes.run(step, FACTOR))
        dist.all_reduce(sums)
        total, count, expected = one_process(spec, micro_batches, step)
        assert sums[1] == count
        loss_error = max(loss_error, abs(sums[0].item() - total) / total)
        for name in sorted(shared_by_stages(spec)):
            shared = engine.grads.get(name, torch.zeros_like(expected[name]))
            dist.all_reduce(shared)  # what an engine does for tied parameters
            if name in engine.grads:
                engine.grads[name] = shared
        held = {name for part in engine.parts for name, _ in part.named_parameters()}
        assert engine.grads.keys() == held
        for name, grad in engine.grads.items():
            grad_error = max(grad_error, ((grad - expected[name]).norm() / expected[name].norm()).item())
    assert engine.finished == 2
    return f"{schedule} {layers} {micro_batches}", loss_error, grad_error


def compare_all(cases: list[Case]) -> list[tuple[str, float, float]]:
    return [compare(*case) for case in cases]


def cases_on_two_ranks() -> list[Case]:
    """Every schedule, even and uneven, untied and tied, with a few micro-batches and more."""
    splits = {2: [(4, 4), (5, 3)], 4: [(2, 2, 2, 2), (3, 1, 2, 2)]}
    cases = []
    for schedule in SCHEDULES:
        even, uneven = splits[stage_count(schedule, 2)]
        cases += [(schedule, even, 4, False), (schedule, uneven, 6, True)]
    return cases


class Kept:
    """A tensor that autograd keeps for a backward pass; counts the bytes of all that are alive."""

    alive = most = 0

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor.detach()
        Kept.alive += tensor.nbytes
        Kept.most = max(Kept.most, Kept.alive)

    def __del__(self) -> None:
        Kept.alive -= self.tensor.nbytes


def memory_at_peak(schedule: str, layers: tuple[int, ...], micro_batches: int) -> tuple[int, int]:
    """Bytes that autograd keeps at the peak of a second step, and tensors of the shape that stages exchange that are
    there before a last forward pass.
    """
    hidden = (BATCH, LENGTH, MODEL.hidden)
    counts = [0]

    def look(step: int, micro: int) -> None:
        if step == 2 and micro == micro_batches - 1:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # isinstance asks some of torch's lazy objects what they are
                counts.append(sum(isinstance(o, Tensor) and o.shape == hidden for o in gc.get_objects()))

    passes, _ = pipelined(MODEL, schedule, layers, micro_batches, Sampler(), on_micro=look)
    passes.run(1, 1.0)
    gc.collect()
    Kept.most = Kept.alive = counts[0] = 0
    with torch.autograd.graph.saved_tensors_hooks(Kept, lambda kept: kept.tensor):
        passes.run(2, 1.0)
    gc.collect()
    assert Kept.alive == 0
    return Kept.most, max(counts)


def peaks() -> dict[str, list[tuple[int, int]]]:
    cases = {"1f1b": (4, 4), "zbv": (2, 2, 2, 2), "gpipe": (4, 4)}
    return {name: [memory_at_peak(name, cases[name], n) for n in (16, 32)] for name in cases}


def odd_cases() -> dict[str, object]:
    """What each rank sees of unusual things, so that one start of processes does for all."""
    seen: list[tuple[int, int]] = []
    layers = (2, 2, 2, 2)
    passes, engine = pipelined(
        MODEL, "zbv", layers, 4, Sampler(), on_micro=lambda step, micro: seen.append((step, micro))
    )
    sums = [x.item() for x in passes.run(3, 1.0)]
    told: dict[str, object] = {"micros": sorted(seen), "collected": engine.collected, "sums": sums}
    passes, _ = pipelined(MODEL, "1f1b", (4, 4), 4, Sampler((5, 7, 5, 6)))
    with pytest.raises(DistperfError) as refused:
        passes.run(1, 1.0)
    told["refused"] = str(refused.value)
    passes, engine = pipelined(MODEL, "1f1b", (4, 4), 4, Sampler())
    if dist.get_rank() == 1:
        engine.parts[0].norm.forward = _fail
    with pytest.raises((DistperfError, RuntimeError)) as failed:
        _run_and_leave(passes)
    told["failed"] = str(failed.value)
    return told


def _run_and_leave(passes: Pipelined) -> None:
    """A step; a rank on which it fails lets go of its connections, as a process that ends does."""
    try:
        passes.run(1, 1.0)
    except BaseException:
        dist.destroy_process_group()
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        raise


def _fail(x: Tensor) -> Tensor:
    raise DistperfError("no")


def on_two_ranks() -> tuple[
    list[tuple[str, float, float]], dict[str, list[tuple[int, int]]], dict[str, object]
]:
    return compare_all(cases_on_two_ranks()), peaks(), odd_cases()


@cache
def two_ranks() -> list[tuple]:
    """What both ranks saw, of one start of processes for all tests."""
    return run_ranks(on_two_ranks, 2, timeout_s=240, group_timeout_s=120)


def test_every_schedule_on_two_ranks_is_one_process_f04():
    """Even and uneven stages, untied and tied (F04), few micro-batches and many, all equal to 1e-5."""
    for compared, _, _ in two_ranks():
        assert [entry for entry in compared if entry[1] > 1e-6 or entry[2] > 1e-5] == []


def test_four_ranks_are_one_process():
    """More stages than two, and more of them than fit evenly: 1F1B and the schedules with eight stages."""
    cases = [("1f1b", (3, 2, 2, 1), 6, True), ("gpipe", (2, 2, 2, 2), 3, False)]
    cases += [(name, (1,) * 8, 8, False) for name in SCHEDULES if stage_count(name, 4) == 8]
    for by_rank in run_ranks(compare_all, 4, cases, timeout_s=240, group_timeout_s=120):
        assert [entry for entry in by_rank if entry[1] > 1e-6 or entry[2] > 1e-5] == []


def test_memory_is_bounded_by_stages_not_by_micro_batches():
    """Twice the micro-batches take no more memory in 1F1B and ZBV; in GPipe they take twice as much."""
    for _, by_schedule, _ in two_ranks():
        for name in ("1f1b", "zbv"):
            assert by_schedule[name][1] == by_schedule[name][0], by_schedule
        few, many = by_schedule["gpipe"]
        assert many[0] == 2 * few[0]


def test_what_ranks_are_told_f06_f08():
    """Each stage's passes are announced and collected; only the last stage's rank has the loss (F06); a
    micro-batch of another length is refused by all ranks (F08); errors are the first rank's own, and short.
    """
    (_, _, first), (_, _, second) = two_ranks()
    for told in (first, second):
        assert told["micros"] == sorted((3, micro) for micro in range(4) for _ in range(2))
        assert told["collected"] == 8
        assert (
            "step 1, micro-batch 0 has shape (2, 5), but the pipeline was built for (2, 6)" in told["refused"]
        )
    assert first["sums"][0] > 0
    assert second["sums"] == [0, 0]
    assert second["failed"] == "no"
    assert len(first["failed"]) < 300
