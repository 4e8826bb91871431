"""Batches of one data-parallel rank, by step and micro-batch.

Holds no position: any step can be asked for, in any order, so a resume needs only the step.

Shapes: B micro_batch, S seq_len.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from distperf.data.samples import batch_positions, check_enough, sample_at
from distperf.data.store import SampleStore
from distperf.model.loss import IGNORE
from distperf.recipe.runspec import DataSpec, TrainSpec

INPUTS, TARGETS = slice(None, -1), slice(1, None)


class Loader:
    """Gathers in the calling thread: a batch of 64 x 1024 tokens takes about as long as one small kernel."""

    def __init__(self, spec: DataSpec, store: SampleStore, train: TrainSpec, rank: int, world: int) -> None:
        """`rank` and `world` count data-parallel ranks. Raises DataError for less than a global batch."""
        assert train.global_batch == train.micro_batch * train.accumulation * world, (train, world)
        check_enough(store.num_samples, train.global_batch, "data")
        self._spec = spec
        self._store = store
        self._train = train
        self._rank = rank
        self._world = world
        self._pin = torch.cuda.is_available()

    def batch(self, step: int, micro: int) -> tuple[Tensor, Tensor]:
        """Inputs and targets, (B, S) int64 each, IGNORE where there is no loss. Step from 1, micro from 0."""
        positions = batch_positions(step, micro, self._rank, self._world, self._train)
        indices = [sample_at(g, self._store.num_samples, self._train.seed) for g in positions]
        samples = [self._store.sample(index) for index in indices]
        inputs, targets = (torch.from_numpy(np.stack([s[cut] for s in samples])) for cut in (INPUTS, TARGETS))
        if self._masks_starts:
            targets[inputs == self._store.eod] = IGNORE
        return (inputs.pin_memory(), targets.pin_memory()) if self._pin else (inputs, targets)

    def tokens_in_step(self, step: int) -> int:
        """How many targets of this rank have a loss in a step; reads the batches where some have none."""
        if not self._masks_starts:
            return self._train.accumulation * self._train.micro_batch * self._spec.seq_len
        return sum(
            int((self.batch(step, micro)[1] != IGNORE).sum()) for micro in range(self._train.accumulation)
        )

    @property
    def _masks_starts(self) -> bool:
        """Whether the first token of a document, which nothing before it foretells, has no loss."""
        return self._spec.boundary == "mask" and self._store.eod is not None
