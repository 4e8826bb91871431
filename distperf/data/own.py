"""Samples out of a Dataset or IterableDataset of the user's, which a function of theirs returns.

The datasets know nothing of ranks, steps and resumes: all that is here. Whatever they draw from the generators of
torch, numpy and Python is a function of the run's seed and the sample's place in the stream, on any mesh and after a
resume.

Shapes: S seq_len.
"""

from __future__ import annotations

import json
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from torch.utils.data import IterableDataset

from distperf.data.samples import held_back, sample_at
from distperf.data.store import Rows, SampleStore, Shuffled, Vocabulary, shifted
from distperf.errors import DataError, DatasetFailed, DistperfError
from distperf.model.loss import IGNORE
from distperf.own_code import kind_of, own_function, seed_of, seeded
from distperf.recipe.runspec import DataSpec

END = object()


def open_own(spec: DataSpec, vocab: int) -> tuple[SampleStore, SampleStore | None]:
    """What data.factory makes, for training and for evaluation. It is called with generators seeded alike everywhere.

    Raises:
        DataError: the function is not there, or fails, or makes no dataset that can be trained on.
    """
    assert spec.factory is not None, "there is a function of the user's"
    where = f"data.factory {spec.factory}"
    function = own_function(spec.factory, spec.args, "data.factory", DataError)
    with seeded(0), told(where):
        dataset = function(**spec.args)
    items = _Items(spec, vocab, where)
    if isinstance(dataset, IterableDataset) or (
        hasattr(dataset, "__iter__") and not hasattr(dataset, "__getitem__")
    ):
        if spec.validation_share:
            raise DataError(
                f"{where}: nobody knows how many samples {kind_of(dataset)} has, of which data.validation is a share. "
                "Return a Dataset with a length, or take data.validation out"
            )
        return OwnStream(dataset, items), None
    if not (hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")):
        raise DataError(f"{where}: returned {kind_of(dataset)}; it takes a torch Dataset or IterableDataset")
    with told(where):
        length = len(dataset)
    cut = length - held_back(length, spec.validation_share)
    held = OwnSamples(dataset, items, cut, length) if spec.validation_share else None
    return OwnSamples(dataset, items, 0, cut), held


class OwnSamples(Shuffled):
    """Items [start, stop) of a map-style dataset, shuffled as other samples are."""

    vocabulary: Vocabulary | None = None

    def __init__(self, dataset: Any, items: _Items, start: int, stop: int) -> None:
        """Reads the first sample, so that what is no sample is refused before training."""
        self._dataset, self._items, self._start = dataset, items, start
        self.num_samples = stop - start
        first = self.sample(0).tolist() if self.num_samples else []
        self.content_hash = (
            f"{items.identity} {start} {stop} {seed_of(*(id_ for row in first for id_ in row))}"
        )

    def sample(self, index: int) -> Rows:
        """Sample `index`, with draws that are a function of it alone."""
        return self._item(index, seed_of(index))

    def at(self, position: int, seed: int) -> Rows:
        """The sample at a position of the stream; what it draws differs from epoch to epoch."""
        return self._item(sample_at(position, self.num_samples, seed), seed_of(seed, position))

    def _item(self, index: int, draws: int) -> Rows:
        where = f"{self._items.where}, sample {self._start + index}"
        with seeded(draws), told(where):
            item = self._dataset[self._start + index]
        return self._items.rows(item, where)


class OwnStream:
    """The items of an iterable dataset in its own order, again and again. It is read forwards only.

    `set_epoch(n)` of the dataset is called before each round, and `state_dict()` and `load_state_dict(state)` for
    checkpoints, where it has them. Without, a resume reads and passes over what was trained on.
    """

    vocabulary: Vocabulary | None = None
    num_samples = 0  # nobody knows

    def __init__(self, dataset: Any, items: _Items) -> None:
        self._dataset, self._items = dataset, items
        self.content_hash = items.identity
        self.keeps_state = hasattr(dataset, "state_dict") and hasattr(dataset, "load_state_dict")
        self._iterator: Iterator[Any] | None = None
        self._least = 1
        self._state: Any = None
        self._next = self._epoch = self._taken = (
            0  # the next item's position; rounds, and items of this one, so far
        )

    def check_enough(self, global_batch: int) -> None:
        """Nothing is known yet: a round that ends with less is refused then."""
        self._least = global_batch

    def go_on(self, position: int, state: Any) -> None:
        """Begin with the item at `position`, when `state` is what `state_after` said of the items before, or None."""
        if state is not None and self.keeps_state:
            self._next, self._epoch, self._taken = position, state["epoch"], state["taken"]
            self._state = state["dataset"]

    def sample(self, index: int) -> Rows:
        """An item by its position, once it has come that far."""
        return self.at(index, 0)

    def at(self, position: int, seed: int) -> Rows:
        """The item at a position, which is not before the last one's."""
        self._pass_over(position, seed)
        return self._items.rows(self._draw(seed), f"{self._items.where}, item {position}")

    def state_after(self, position: int, seed: int) -> Any:
        """What a checkpoint keeps where the items before `position` were trained on; None: the dataset says nothing.

        Raises: DataError where what it says is not JSON.
        """
        self._pass_over(position, seed)
        if not self.keeps_state:
            return None
        with told(f"{self._items.where}, state_dict() after {position} items"):
            state = self._dataset.state_dict()
            if json.loads(json.dumps(state)) != state:
                raise ValueError("numbers, text, lists and mappings by text are kept, and others were found")
        return {"epoch": self._epoch, "taken": self._taken, "dataset": state}

    def _pass_over(self, position: int, seed: int) -> None:
        assert position >= self._next, (position, self._next)
        while self._next < position:
            self._draw(seed)

    def _draw(self, seed: int) -> Any:
        """The next item, of the next round where this one is over. Raises DataError where a round has too few."""
        while True:
            with seeded(seed_of(seed, self._next)), told(f"{self._items.where}, item {self._next}"):
                item = next(self._iterator or self._round(), END)
            if item is not END:
                self._next += 1
                self._taken += 1
                return item
            if self._taken < self._least:
                raise DataError(
                    f"{self._items.where}: {self._taken} samples and no more, which do not fill one global batch of "
                    f"{self._least}. Give it more, or make train.global_batch smaller"
                )
            self._epoch, self._taken, self._iterator = self._epoch + 1, 0, None

    def _round(self) -> Iterator[Any]:
        if hasattr(self._dataset, "set_epoch"):
            self._dataset.set_epoch(self._epoch)
        if self._state is not None:
            self._dataset.load_state_dict(self._state)
            self._state = None
        self._iterator = iter(self._dataset)
        return self._iterator


class _Items:
    """What items of a dataset must be, and which one they come from."""

    def __init__(self, spec: DataSpec, vocab: int, where: str) -> None:
        self.where = where
        self.identity = json.dumps([spec.factory, spec.args, spec.seq_len], sort_keys=True)
        self._length, self._vocab = spec.seq_len, vocab

    def rows(self, item: Any, where: str) -> Rows:
        """An item as inputs and targets (2, S). Raises DataError for what is no sample of token ids."""
        is_pair = isinstance(item, tuple | list) and len(item) == 2 and hasattr(item[0], "__len__")
        with told(where):
            parts = [np.asarray(part) for part in (item if is_pair else [item])]
        wanted = (self._length,) if is_pair else (self._length + 1,)
        if any(part.shape != wanted or part.dtype.kind not in "iu" for part in parts):
            found = " and ".join(f"{part.shape} of {part.dtype}" for part in parts)
            raise DataError(
                f"{where}: {kind_of(item)}, {found}; it takes {self._length + 1} token ids (data.seq_len + 1), or a "
                f"pair of {self._length} inputs and {self._length} targets, whole numbers"
            )
        rows = np.stack(parts).astype(np.int64) if is_pair else shifted(parts[0].astype(np.int64))
        self._refuse_ids(rows, where)
        return rows

    def _refuse_ids(self, rows: Rows, where: str) -> None:
        known = (rows >= 0) & (rows < self._vocab)
        known[1] |= rows[1] == IGNORE
        if not known.all():
            raise DataError(
                f"{where}: token id {rows[~known][0]}, but the model's vocabulary is {self._vocab} (model.vocab); a "
                f"target without loss is {IGNORE}"
            )


@contextmanager
def told(where: str) -> Iterator[None]:
    """The border to the user's code: whatever it raises becomes a DatasetFailed that shows their frames."""
    try:
        yield
    except DistperfError:
        raise
    except Exception as error:
        theirs = error.__traceback__
        while theirs is not None and theirs.tb_frame.f_code.co_filename == __file__:
            theirs = theirs.tb_next
        text = "".join(traceback.format_exception(type(error), error, theirs)).rstrip()
        raise DatasetFailed(f"{where} failed:\n{text}") from error
