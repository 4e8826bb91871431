"""From samples to a batch.

Shapes: B samples, S seq_len.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from distperf.data.own import OwnStream
from distperf.data.store import Rows, SampleStore
from distperf.model.loss import IGNORE
from distperf.recipe.runspec import DataSpec

Batch = NDArray[np.int64]  # (2, B, S): inputs and targets


def batch_of(samples: Sequence[Rows], mask_after: int | None) -> Batch:
    """Samples one under the other, without loss on what follows the id `mask_after`, if any."""
    batch = np.stack(samples, axis=1)
    if mask_after is not None:
        inputs, targets = batch
        targets[inputs == mask_after] = IGNORE
    return batch


def mask_after(spec: DataSpec, store: SampleStore) -> int | None:
    """The end of a document, after which a target carries no loss, where the recipe wants that."""
    return store.vocabulary.eod if spec.boundary == "mask" and store.vocabulary else None


def tensors(batch: Batch) -> tuple[Tensor, Tensor]:
    """Inputs and targets (B, S) int64, in the memory of the batch."""
    inputs, targets = torch.from_numpy(batch)
    return inputs, targets


@dataclass(frozen=True)
class Order:
    """A micro-batch that is wanted: the samples at stream positions first, first + 1, ...

    `upto`: where the step ends that it is the last micro-batch of, and 0 for the others.
    """

    first: int
    upto: int


@dataclass(frozen=True)
class Gather:
    """Makes batches of one size, in whichever process it is called."""

    store: SampleStore
    micro_batch: int
    seq_len: int
    seed: int
    mask_after: int | None

    @property
    def shape(self) -> tuple[int, int, int]:
        """Of a batch."""
        return 2, self.micro_batch, self.seq_len

    def __call__(self, order: Order) -> tuple[Batch, Any]:
        """The batch, and what a checkpoint keeps of a dataset of the user's after the step, if anything."""
        positions = range(order.first, order.first + self.micro_batch)
        batch = batch_of([self.store.at(position, self.seed) for position in positions], self.mask_after)
        if order.upto and isinstance(self.store, OwnStream):
            return batch, self.store.state_after(order.upto, self.seed)
        return batch, None
