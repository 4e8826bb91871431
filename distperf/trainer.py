"""One training step over built parts. Builds nothing and knows no recipe."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from distperf.errors import DataError, DistperfError
from distperf.measure.progress import StepResult
from distperf.model.loss import IGNORE
from distperf.optim.clip import clip_factor
from distperf.parallel.engine import Engine


class Batches(Protocol):
    """Where a rank's micro-batches come from: a pure function of step and micro-batch."""

    def batch(self, step: int, micro: int) -> tuple[Tensor, Tensor]:
        """Tokens and targets (B, S) int64 on the CPU; targets may be IGNORE."""
        ...


class Trainer:
    """Loss, gradients and update are means over the tokens of the whole global batch.

    Micro-batches give sums; their sum over micro-batches and ranks is divided once by the number of targets
    that counted anywhere. So neither the division into ranks nor short sequences change what a token weighs.
    """

    def __init__(
        self,
        engine: Engine,
        batches: Batches,
        loss_sum: Callable[[Tensor, Tensor], Tensor],
        lr_at: Callable[[int], float],
        accumulation: int,
        grad_clip: float | None,
        device: torch.device,
    ) -> None:
        self.engine = engine
        self._batches = batches
        self._loss_sum = loss_sum
        self._lr_at = lr_at
        self._accumulation = accumulation
        self._grad_clip = grad_clip
        self._device = device

    def step(self, step: int, told_to_stop: Callable[[], bool] = lambda: False) -> StepResult:
        """Train on the global batch of `step`, which counts from 1. told_to_stop: whether this rank shall end.

        Raises:
            DistperfError: loss or gradient norm is not finite, before any weight changes; on every rank.

        Cost: the engine's, and one all-reduce of 32 bytes.
        """
        loss_sum, count = self._forward_backward(step)
        norm_sq_here = self.engine.grad_norm_sq().to(loss_sum)
        sums = torch.stack([loss_sum, count, norm_sq_here, loss_sum.new_tensor(float(told_to_stop()))])
        dist.all_reduce(sums)
        total_loss, tokens, norm_sq, stops = sums.tolist()
        if not tokens:
            raise DataError(f"step {step}: no token of the global batch counts for the loss")
        loss, norm = total_loss / tokens, math.sqrt(norm_sq) / tokens if norm_sq >= 0 else math.nan
        if not (math.isfinite(loss) and math.isfinite(norm)):
            raise DistperfError(
                f"step {step}: loss is {loss}, gradient norm {norm}; weights are still those of step "
                f"{step - 1}. Lower optimizer.lr, lengthen its warm-up, or look at the data of this step"
            )
        lr = self._lr_at(step)
        clip = clip_factor(torch.tensor(norm * norm, dtype=torch.float64), self._grad_clip)
        self.engine.step(lr, grad_scale=float(clip) / tokens)
        return StepResult(loss, norm, lr, int(tokens), stop=stops > 0)

    def _forward_backward(self, step: int) -> tuple[Tensor, Tensor]:
        """Sums of losses and of targets that counted, () float64 each; gradients are left in the engine."""
        loss_sum = torch.zeros((), dtype=torch.float64, device=self._device)
        count = torch.zeros_like(loss_sum)
        for micro in range(self._accumulation):
            inputs, targets = (
                t.to(self._device, non_blocking=True) for t in self._batches.batch(step, micro)
            )
            loss = self._loss_sum(self.engine.model(inputs), targets)
            self.engine.backward(loss, last=micro == self._accumulation - 1)
            loss_sum += loss.detach()
            count += (targets != IGNORE).sum()
        self.engine.finish()
        return loss_sum, count
