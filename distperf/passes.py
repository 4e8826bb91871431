"""Forward and backward passes of a step, one micro-batch after the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from distperf.measure.stopwatch import BACKWARD, COMMUNICATION, DATA, FORWARD
from distperf.model.dropout import Draws
from distperf.model.loss import IGNORE
from distperf.parallel.engine import Engine


class Batches(Protocol):
    """Where a rank's micro-batches come from: a pure function of step and micro-batch."""

    def batch(self, step: int, micro: int) -> tuple[Tensor, Tensor]:
        """Tokens and targets (B, S) int64 on the CPU; targets may be IGNORE."""
        ...

    def first(self, step: int, micro: int) -> int:
        """Place of the micro-batch's first sample in the endless stream of samples."""
        ...


class Passes(Protocol):
    """A step's forward and backward passes."""

    def run(self, step: int, factor: float) -> tuple[Tensor, Tensor]:
        """Sums of losses and of targets that counted, () float64 each; zeros where other ranks have them.

        Gradients of losses times `factor` are left in the engine, complete.
        """
        ...


class Serial:
    """Each micro-batch forward and backward, without a pipeline."""

    def __init__(
        self,
        engine: Engine,
        batches: Batches,
        loss_sum: Callable[[Tensor, Tensor], Tensor],
        accumulation: int,
        draws: Draws,
        device: torch.device,
    ) -> None:
        self._engine = engine
        self._batches = batches
        self._loss_sum = loss_sum
        self._accumulation = accumulation
        self._draws = draws
        self._device = device

    def run(self, step: int, factor: float) -> tuple[Tensor, Tensor]:
        """As `Passes.run`. Cost: the engine's."""
        loss_sum = torch.zeros((), dtype=torch.float64, device=self._device)
        count = torch.zeros_like(loss_sum)
        for micro in range(self._accumulation):
            with DATA:
                inputs, targets = (
                    t.to(self._device, non_blocking=True) for t in self._batches.batch(step, micro)
                )
            with FORWARD:
                self._draws.at(self._batches.first(step, micro))
                loss = self._loss_sum(self._engine.parts[0](inputs), targets)
            with BACKWARD:
                scaled = loss if factor == 1.0 else loss * factor
                self._engine.backward(scaled, last=micro == self._accumulation - 1)
            loss_sum += loss.detach()
            count += (targets != IGNORE).sum()
        with COMMUNICATION:
            self._engine.finish()
        return loss_sum, count
