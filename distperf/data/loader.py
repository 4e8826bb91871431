"""Batches of one data-parallel rank, by step and micro-batch.

Holds no position but where the run went on: any step after it can be asked for, in any order.

Shapes: B micro_batch, S seq_len.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from distperf.data.samples import Stream, batch_positions, check_enough, sample_at
from distperf.data.store import SampleStore
from distperf.model.loss import IGNORE
from distperf.recipe.runspec import DataSpec, TrainSpec

INPUTS, TARGETS = slice(None, -1), slice(1, None)


class Loader:
    """Gathers in the calling thread: 64 x 1024 tokens take about 1 ms, so a thread of its own would gain nothing."""

    def __init__(self, spec: DataSpec, store: SampleStore, train: TrainSpec, rank: int, world: int) -> None:
        """`rank` and `world` count data-parallel ranks. Raises DataError for less than a global batch."""
        assert train.global_batch == train.micro_batch * train.accumulation * world, (train, world)
        check_enough(store.num_samples, train.global_batch, "data")
        self.stream = Stream(train.global_batch)
        self._mask_after = mask_after(spec, store)
        self._store = store
        self._train = train
        self._rank = rank
        self._world = world
        self._pin = torch.cuda.is_available()

    def first(self, step: int, micro: int) -> int:
        """Stream position of the first sample of a micro-batch; the others follow it."""
        return self._positions(step, micro)[0]

    def batch(self, step: int, micro: int) -> tuple[Tensor, Tensor]:
        """Inputs and targets, (B, S) int64 each, IGNORE where there is no loss. Step from 1, micro from 0."""
        indices = [
            sample_at(g, self._store.num_samples, self._train.seed) for g in self._positions(step, micro)
        ]
        samples = [self._store.sample(index) for index in indices]
        inputs, targets = cut(samples)
        targets = masked(inputs, targets, self._mask_after)
        return (inputs.pin_memory(), targets.pin_memory()) if self._pin else (inputs, targets)

    def _positions(self, step: int, micro: int) -> range:
        first = self.stream.first(step)
        return batch_positions(first, micro, self._rank, self._world, self._train)


def cut(samples: Sequence[NDArray[np.int64]]) -> tuple[Tensor, Tensor]:
    """Inputs and targets (B, S) of samples of S + 1 ids each."""
    inputs, targets = (torch.from_numpy(np.stack([s[part] for s in samples])) for part in (INPUTS, TARGETS))
    return inputs, targets


def mask_after(spec: DataSpec, store: SampleStore) -> int | None:
    """The id after which a target carries no loss, where the recipe wants that."""
    return store.vocabulary.eod if spec.boundary == "mask" and store.vocabulary else None


def masked(inputs: Tensor, targets: Tensor, after: int | None) -> Tensor:
    """Targets without the first token of a document, which nothing before it foretells."""
    if after is not None:
        targets[inputs == after] = IGNORE
    return targets
