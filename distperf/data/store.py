"""Samples of token shards, of mixtures of them, and of synthetic ids, behind one small interface."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from distperf.data.mixture import Mixture
from distperf.data.samples import check_enough, num_windows, sample_at
from distperf.data.shards import TokenStore

ENDLESS = 2**40  # samples of synthetic data: more than a run will see

Rows = NDArray[np.int64]  # (2, S): inputs, and the target of each


@dataclass(frozen=True)
class Vocabulary:
    """What made the ids. `tokenizer`: "byte", or the absolute path of the file it was."""

    tokenizer: str
    tokenizer_hash: str
    eod: int  # the id after every document


@dataclass(frozen=True)
class DataOrigin:
    """What a checkpoint says about the data it was trained on. `order`: equal where samples and their order are."""

    seq_len: int
    order: str
    vocabulary: Vocabulary | None


class SampleStore(Protocol):
    """Samples, by their number and by their place in the endless stream that a run trains on."""

    num_samples: int
    vocabulary: Vocabulary | None  # where there are documents

    @property
    def content_hash(self) -> str:
        """What to compare between nodes, which may each have read files of their own."""

    def sample(self, index: int) -> Rows:
        """Sample `index`, inputs and targets (2, S)."""

    def at(self, position: int, seed: int) -> Rows:
        """The sample at a position of the stream."""

    def check_enough(self, global_batch: int) -> None:
        """Raise DataError where there is less than a global batch."""


class Shuffled(ABC):
    """The stream of a store with samples by number: each epoch visits every one, in an order of its own."""

    num_samples: int

    @abstractmethod
    def sample(self, index: int) -> Rows:
        """Sample `index`."""

    def at(self, position: int, seed: int) -> Rows:
        """The sample at a position of the stream."""
        return self.sample(sample_at(position, self.num_samples, seed))

    def check_enough(self, global_batch: int) -> None:
        """Raise DataError where there is less than a global batch."""
        check_enough(self.num_samples, global_batch, "data")


class WindowStore(Shuffled):
    """Windows of seq_len + 1 tokens over token shards, or over their tokens [start, stop)."""

    def __init__(self, tokens: TokenStore, seq_len: int, start: int = 0, stop: int | None = None) -> None:
        stop = tokens.tokens if stop is None else stop
        self.num_samples = num_windows(stop - start, seq_len)
        self._start = start
        first = tokens.manifests[0]
        self.vocabulary: Vocabulary | None = Vocabulary(first.tokenizer, first.tokenizer_hash, first.eod)
        self.content_hash = tokens.content_hash
        self._tokens = tokens
        self._seq_len = seq_len

    def sample(self, index: int) -> Rows:
        """Window `index`, starting at token start + index * seq_len."""
        return shifted(self._tokens.read(self._start + index * self._seq_len, self._seq_len + 1))


class JoinedStore(Shuffled):
    """The samples of several stores, one store after the other."""

    def __init__(self, stores: Sequence[WindowStore]) -> None:
        """The stores' tokens were made by one tokenizer."""
        self.vocabulary = stores[0].vocabulary
        self.content_hash = _hash(*(store.content_hash for store in stores))
        self._stores = stores
        self._ends = list(accumulate(store.num_samples for store in stores))
        self.num_samples = self._ends[-1]

    def sample(self, index: int) -> Rows:
        """Sample `index`, counted over all stores."""
        store = bisect_right(self._ends, index)
        return self._stores[store].sample(index - self._ends[store] + self._stores[store].num_samples)


class MixedStore(JoinedStore):
    """The same, of which a run trains on so many samples of each store: see `Mixture`."""

    def __init__(self, stores: Sequence[WindowStore], weights: Sequence[int], names: Sequence[str]) -> None:
        super().__init__(stores)
        self.content_hash = _hash(self.content_hash, *map(str, weights))
        self._names = names
        self._mixture = Mixture.of(weights)

    def at(self, position: int, seed: int) -> Rows:
        """The sample at a position of the stream."""
        source, turn = self._mixture.at(position)
        return self._stores[source].at(turn, seed)

    def check_enough(self, global_batch: int) -> None:
        """Raise DataError where a source has less than it gives to a global batch."""
        weights = self._mixture.weights
        for at, (store, name) in enumerate(zip(self._stores, self._names, strict=True)):
            share = -(-global_batch * weights[at] // sum(weights))
            check_enough(
                store.num_samples,
                share,
                f"data.mixture[{at}] {name}",
                f"its share of one global batch, {share} of {global_batch}",
            )


class SyntheticStore(Shuffled):
    """Ids drawn anew for every sample, a function of its index alone.

    Low ids are more frequent (id / vocab = u**3, u uniform), so a model has something to learn: loss falls
    from ln(vocab) to 0.7 (vocab 100) or 0.9 (vocab 100 000) below it.
    """

    def __init__(self, vocab: int, seq_len: int) -> None:
        self.num_samples = ENDLESS
        self.vocabulary: Vocabulary | None = None
        self.content_hash = f"synthetic-{vocab}-{seq_len}"
        self._vocab = vocab
        self._seq_len = seq_len

    def sample(self, index: int) -> Rows:
        """Sample `index`."""
        uniform = np.random.Generator(np.random.Philox(key=index)).random(self._seq_len + 1)
        return shifted((uniform**3 * self._vocab).astype(np.int64))


def shifted(ids: NDArray[np.int64]) -> Rows:
    """Of S + 1 ids the first S, and the ones that follow each."""
    return np.stack((ids[:-1], ids[1:]))


def data_origin(store: SampleStore, seq_len: int, seed: int) -> DataOrigin:
    """What checkpoints say about these samples, in the order that `seed` gives them."""
    order = _hash(f"{store.content_hash}/{store.num_samples}/{seq_len}/{seed}")
    return DataOrigin(seq_len, order, store.vocabulary)


def _hash(*texts: str) -> str:
    return hashlib.blake2b(" ".join(texts).encode(), digest_size=16).hexdigest()
