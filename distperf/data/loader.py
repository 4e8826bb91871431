"""Batches of one data-parallel rank, by step and micro-batch.

Holds no position but where the run went on: any step after it can be asked for, in any order (a dataset of the user's
that is read forwards only: in this order).

Shapes: B micro_batch, S seq_len.
"""

from __future__ import annotations

import torch
from torch import Tensor

from distperf.data.batch import Gather, Order, mask_after, tensors
from distperf.data.own import OwnStream
from distperf.data.prefetch import Direct, Prefetch
from distperf.data.samples import Stream, batch_positions
from distperf.data.store import SampleStore
from distperf.recipe.runspec import DataSpec, TrainSpec


class Loader:
    """Micro-batches are numbered through, `accumulation` a step; where each begins in the stream is arithmetic."""

    def __init__(self, spec: DataSpec, store: SampleStore, train: TrainSpec, rank: int, world: int) -> None:
        """`rank` and `world` count data-parallel ranks. Raises DataError for less than a global batch."""
        assert train.global_batch == train.micro_batch * train.accumulation * world, (train, world)
        store.check_enough(train.global_batch)
        self.stream = Stream(train.global_batch, is_sequential=isinstance(store, OwnStream))
        self._store, self._train, self._rank, self._world = store, train, rank, world
        gather = Gather(store, train.micro_batch, spec.seq_len, train.seed, mask_after(spec, store))
        self._batches: Direct | Prefetch = Direct(gather, self._order)
        if spec.workers:
            end = train.steps * train.accumulation
            self._batches = Prefetch(gather, self._order, end, spec.workers, spec.worker_timeout_s)
        self._pin = torch.cuda.is_available()
        self._has_begun = False

    def first(self, step: int, micro: int) -> int:
        """Stream position of the first sample of a micro-batch; the others follow it."""
        first = self.stream.first(step)
        return batch_positions(first, micro, self._rank, self._world, self._train)[0]

    def batch(self, step: int, micro: int) -> tuple[Tensor, Tensor]:
        """Inputs and targets, (B, S) int64 each, IGNORE where there is no loss. Step from 1, micro from 0.

        Raises: DataError, where samples cannot be read or a worker fails.
        """
        if not self._has_begun and isinstance(self._store, OwnStream):
            self._store.go_on(self.stream.samples, self.stream.state)
        self._has_begun = True
        batch, state = self._batches.take((step - 1) * self._train.accumulation + micro)
        if micro == self._train.accumulation - 1:
            self.stream.state = state
        inputs, targets = tensors(batch)
        return (inputs.pin_memory(), targets.pin_memory()) if self._pin else (inputs, targets)

    def close(self) -> None:
        """End the workers, if any."""
        if isinstance(self._batches, Prefetch):
            self._batches.close()

    def _order(self, number: int) -> Order:
        """What micro-batch `number` of the run, from 0, holds."""
        step, micro = number // self._train.accumulation + 1, number % self._train.accumulation
        is_last = micro == self._train.accumulation - 1
        return Order(self.first(step, micro), self.stream.first(step + 1) if is_last else 0)
