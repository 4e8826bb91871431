"""One training step over built parts. Builds nothing and knows no recipe."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch.autograd.profiler import record_function

from distperf.data.samples import Stream
from distperf.errors import DataError, DistperfError
from distperf.measure.progress import StepResult
from distperf.measure.replicas import Replicas
from distperf.measure.stopwatch import CHECKPOINT, COMMUNICATION, OPTIMIZER
from distperf.optim.clip import clip_factor
from distperf.parallel.engine import Engine
from distperf.passes import Passes
from distperf.precision.scaling import LossScale
from distperf.process_group import exchange
from distperf.requests import Asked

NAMED = 5  # parameters that an error names
AGREE = "distperf.agree"  # in traces: ends on all ranks at about the same time


@dataclass(frozen=True)
class Scaled:
    """Loss scaling of a run: the scale, and the tokens of a step, about, by which it is divided.

    Losses are sums over tokens here. Dividing by about their number gives the scale the size it has elsewhere,
    where losses are means, and keeps sums of gradients within fp16's range.
    """

    scale: LossScale
    tokens: int

    @property
    def factor(self) -> float:
        """What losses are multiplied by: a power of two, so that nothing is rounded."""
        return self.scale.scale / float(2 ** (self.tokens.bit_length() - 1))


class Trainer:
    """Loss, gradients and update are means over the tokens of the whole global batch.

    Micro-batches give sums; their sum over micro-batches and ranks is divided once by the number of targets
    that counted anywhere. So neither the division into ranks nor short sequences change what a token weighs.
    """

    def __init__(
        self,
        engine: Engine,
        passes: Passes,
        stream: Stream,
        lr_at: Callable[[int], float],
        grad_clip: float | None,
        *,
        counts: bool = True,
        scaled: Scaled | None = None,
        replicas: Replicas | None = None,
    ) -> None:
        """`stream`: where in the samples the steps of `passes` begin.

        `counts`: of ranks that have equal losses (tensor-parallel ones) this is the one whose loss counts.

        `replicas`: the weights, where they may be compared with those of other ranks.
        """
        self.engine = engine
        self.stream = stream
        self.scaled = scaled
        self.replicas = replicas
        self._passes = passes
        self._lr_at = lr_at
        self._grad_clip = grad_clip
        self._counts = counts
        self._release: Callable[[], None] | None = None

    @property
    def loss_scale(self) -> dict[str, Any] | None:
        """What a checkpoint keeps of loss scaling."""
        return None if self.scaled is None else asdict(self.scaled.scale)

    def set_loss_scale(self, kept: dict[str, Any] | None) -> None:
        """Go on with what a checkpoint kept; from the start where it kept none, as that of a run in bf16."""
        if self.scaled is not None and kept is not None:
            self.scaled = replace(self.scaled, scale=LossScale(**kept))

    def hold(self, release: Callable[[], None]) -> None:
        """Call `release` once before the next update: until then somebody reads weights and optimizer state."""
        self._release = release

    def step(self, step: int, asked: Callable[[], Asked] = Asked) -> StepResult:
        """Train on the global batch of `step`, which counts from 1. asked: what this rank is asked, as of this step.

        With loss scaling, a step whose gradients overflow changes no weight, on any rank.

        Raises:
            DistperfError: loss or gradient norm is not finite, before any weight changes; on every rank.

        Cost: the engine's, and one all-reduce of 48 bytes.
        """
        factor = 1.0 if self.scaled is None else self.scaled.factor
        loss_sum, count = self._passes.run(step, factor)
        with OPTIMIZER:
            norm_sq_here = self.engine.grad_norm_sq().to(loss_sum)
        now = asked()
        sums = torch.stack(
            [loss_sum, count, norm_sq_here, *loss_sum.new_tensor([now.stop, now.save, now.profile])]
        )
        if not self._counts:
            sums[:2] = 0
        with COMMUNICATION, record_function(AGREE):
            dist.all_reduce(sums)
            total_loss, tokens, norm_sq, *told = sums.tolist()
        if not tokens:
            raise DataError(f"step {step}: no token of the global batch counts for the loss")
        loss = total_loss / tokens
        norm = math.sqrt(norm_sq) / tokens / factor if norm_sq >= 0 else math.nan
        lr, scale = self._lr_at(step), None if self.scaled is None else self.scaled.scale.scale
        skipped = not (math.isfinite(loss) and math.isfinite(norm))
        if skipped:
            self._refuse_or_skip(step, loss, norm)
        else:
            clip = clip_factor(torch.tensor(norm * norm, dtype=torch.float64), self._grad_clip)
            self._let_go()
            with OPTIMIZER:
                self.engine.step(lr, grad_scale=float(clip) / tokens / factor)
        if self.scaled is not None:
            self.scaled = replace(self.scaled, scale=self.scaled.scale.after(skipped))
        return StepResult(loss, norm, lr, int(tokens), scale, skipped, Asked(*map(int, told)))

    def _let_go(self) -> None:
        release, self._release = self._release, None
        if release is not None:
            with CHECKPOINT:
                release()

    def _refuse_or_skip(self, step: int, loss: float, norm: float) -> None:
        """Raises unless a smaller loss scale can be hoped for. Collective."""
        stuck = self.scaled is not None and self.scaled.scale.after(overflowed=True).is_hopeless
        if self.scaled is not None and not stuck:
            self.engine.skip()
            return
        found = sorted({fqn for names in exchange(self.engine.overflowed()) for fqn in names})
        named = ", ".join(found[:NAMED]) + (f" and {len(found) - NAMED} more" if len(found) > NAMED else "")
        where = f"; gradients that are not finite: {named}" if found else ""
        why = f", even with a loss scale of {self.scaled.scale.scale:g}" if self.scaled is not None else ""
        raise DistperfError(
            f"step {step}: loss is {loss}, gradient norm {norm}{why}{where}; weights are still those of step "
            f"{step - 1}. Lower optimizer.lr, lengthen its warm-up, look at the data of this step"
            + (", or use bf16" if self.scaled is not None else "")
        )
