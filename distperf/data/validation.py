"""Samples that are held back from training, in batches that count each of them once.

Shapes: B micro_batch, S seq_len.
"""

from __future__ import annotations

from torch import Tensor

from distperf.data.batch import batch_of, mask_after, tensors
from distperf.data.samples import permute
from distperf.data.store import SampleStore
from distperf.model.loss import IGNORE
from distperf.recipe.runspec import DataSpec, EvalSpec


class ValidationBatches:
    """The same samples in every evaluation, dealt out to data-parallel ranks of any number.

    All ranks have equally many batches of one shape, since they compute together; where samples run out, rows whose
    targets are all IGNORE stand in. Which samples, where not all are asked for, depends on the seed alone.
    """

    def __init__(
        self, spec: DataSpec, store: SampleStore, evaluation: EvalSpec, seed: int, rank: int, world: int
    ) -> None:
        """`rank` and `world` count data-parallel ranks."""
        self._store, self._seed, self._rank = store, seed, rank
        self._micro, self._dealt = evaluation.micro_batch, evaluation.micro_batch * world
        self._mask_after = mask_after(spec, store)
        self.num_samples = min(store.num_samples, evaluation.samples or store.num_samples)
        self.count = -(-self.num_samples // self._dealt)

    def places(self, index: int) -> range:
        """Which of the samples, counted from 0, this rank has in its batch `index`; fewer at the end, or none."""
        start = index * self._dealt + self._rank * self._micro
        return range(min(start, self.num_samples), min(start + self._micro, self.num_samples))

    def batch(self, step: int, micro: int) -> tuple[Tensor, Tensor]:
        """Inputs and targets (B, S) int64 of batch `micro`, whatever the step."""
        own = self.places(micro)
        indices = [permute(place, self._store.num_samples, self._seed, epoch=-1) for place in own]
        samples = [self._store.sample(index) for index in indices or [0]]
        samples += samples[:1] * (self._micro - len(samples))
        batch = batch_of(samples, self._mask_after)
        batch[1, len(own) :] = IGNORE
        return tensors(batch)

    def first(self, step: int, micro: int) -> int:
        """Nothing is drawn for an evaluation."""
        return 0
