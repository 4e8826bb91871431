"""The loss on samples that are held back from training. Leaves the training as it is."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from distperf.errors import DataError
from distperf.measure.progress import Evaluated
from distperf.model.loss import IGNORE
from distperf.passes import Batches


class Forward(Protocol):
    """From this rank's tokens to logits; None where another rank has them."""

    def __call__(self, tokens: Tensor) -> Tensor | None:
        """Tokens (B, S) int64."""
        ...


class Evaluator:
    """Mean loss over batches `0 .. count`, each token weighing the same, whichever rank has it."""

    def __init__(
        self,
        parts: Sequence[nn.Module],
        forward: Forward,
        batches: Batches,
        count: int,
        loss_sum: Callable[[Tensor, Tensor], Tensor],
        device: torch.device,
        *,
        counts: bool = True,
    ) -> None:
        """`counts`: of ranks that have equal losses (tensor-parallel ones) this is the one whose loss counts."""
        self._parts, self._forward, self._batches, self._count = parts, forward, batches, count
        self._loss_sum, self._device, self._counts = loss_sum, device, counts

    def run(self) -> Evaluated:
        """Evaluate. Collective.

        Cost: as `count` forward passes, and an all-reduce of 16 bytes.
        """
        began = time.perf_counter()
        sums = torch.zeros(2, dtype=torch.float64, device=self._device)
        with evaluating(self._parts):
            for index in range(self._count):
                inputs, targets = (
                    t.to(self._device, non_blocking=True) for t in self._batches.batch(0, index)
                )
                logits = self._forward(inputs)
                if logits is not None:
                    sums[0] += self._loss_sum(logits, targets)
                    sums[1] += (targets != IGNORE).sum()
        if not self._counts:
            sums.zero_()
        dist.all_reduce(sums)
        loss, tokens = sums.tolist()
        if not tokens:
            raise DataError("no token of data.validation counts for the loss")
        return Evaluated(loss / tokens, int(tokens), time.perf_counter() - began)


@contextmanager
def evaluating(parts: Sequence[nn.Module]) -> Iterator[None]:
    """Inside, no gradients and no dropout; afterwards every module is in the mode that it was in.

    What fully_shard would keep for a backward pass is let go of: the outermost module's weights.
    """
    modes = [(module, module.training) for part in parts for module in part.modules()]
    try:
        for part in parts:
            part.eval()
        with torch.no_grad():
            yield
    finally:
        for module, training in modes:
            module.training = training
            if isinstance(module, FSDPModule):
                module.reshard()
