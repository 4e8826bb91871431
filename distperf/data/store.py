"""Where samples come from: token shards or synthetic ids, behind one small interface."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from distperf.data.cache import cached_text
from distperf.data.samples import held_back, num_windows
from distperf.data.shards import TokenStore
from distperf.data.sources import find_sources
from distperf.data.tokenizer import load_tokenizer
from distperf.errors import DataError
from distperf.recipe.runspec import DataSpec

ENDLESS = 2**40  # samples of synthetic data: more than a run will see


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
    """Samples by index."""

    num_samples: int
    vocabulary: Vocabulary | None  # where there are documents

    @property
    def content_hash(self) -> str:
        """What to compare between nodes, which may each have read files of their own."""

    def sample(self, index: int) -> NDArray[np.int64]:
        """Sample `index`: seq_len + 1 ids."""


class WindowStore:
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

    def sample(self, index: int) -> NDArray[np.int64]:
        """Window `index`, starting at token start + index * seq_len."""
        return self._tokens.read(self._start + index * self._seq_len, self._seq_len + 1)


class SyntheticStore:
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

    def sample(self, index: int) -> NDArray[np.int64]:
        """Sample `index`."""
        uniform = np.random.Generator(np.random.Philox(key=index)).random(self._seq_len + 1)
        return (uniform**3 * self._vocab).astype(np.int64)


def open_store(spec: DataSpec, vocab: int) -> SampleStore:
    """The samples that a run trains on, whose model has `vocab` ids; text is tokenised into the cache where needed.

    Raises: DataError, also where the data has an id that the model does not.
    """
    if spec.synthetic:
        return SyntheticStore(vocab, spec.seq_len)
    tokens = _open_tokens(spec, spec.text, spec.tokens, vocab)
    return WindowStore(tokens, spec.seq_len, stop=_boundary(tokens, spec))


def open_validation(spec: DataSpec, vocab: int) -> SampleStore | None:
    """The samples that are held back from training, if any; no token is in both.

    Raises: DataError, also where there are none, or a text file is in both.
    """
    if spec.validation:
        _refuse_shared(spec)
        text, folders = (spec.validation, ()) if spec.text else ((), spec.validation)
        held: SampleStore = WindowStore(_open_tokens(spec, text, folders, vocab), spec.seq_len)
    elif spec.validation_share:
        tokens = _open_tokens(spec, spec.text, spec.tokens, vocab)
        held = WindowStore(tokens, spec.seq_len, start=_boundary(tokens, spec))
    else:
        return None
    if not held.num_samples:
        raise DataError(
            f"data.validation does not fill one sample of {spec.seq_len} + 1 tokens. Give it more, or make "
            "data.seq_len smaller"
        )
    return held


def _boundary(tokens: TokenStore, spec: DataSpec) -> int:
    """The token at which training ends and validation begins."""
    windows = num_windows(tokens.tokens, spec.seq_len)
    if not spec.validation_share:
        return tokens.tokens
    return max(0, windows - held_back(windows, spec.validation_share)) * spec.seq_len + 1


def _refuse_shared(spec: DataSpec) -> None:
    """What is trained on says nothing about what is not."""
    if spec.text:
        trained, held = ({s.path for s in find_sources(globs)} for globs in (spec.text, spec.validation))
    else:
        trained, held = (
            {Path(folder).resolve() for folder in folders} for folders in (spec.tokens, spec.validation)
        )
    if both := sorted(trained & held):
        raise DataError(
            f"data.validation has {both[0]} (and {len(both) - 1} more), which is trained on too. Take it out of one"
        )


def _open_tokens(spec: DataSpec, text: Sequence[str], folders: Sequence[str], vocab: int) -> TokenStore:
    """Shards of these text files, or those in these folders. Raises DataError."""
    if text:
        folders = [str(cached_text(text, load_tokenizer(spec.tokenizer), spec.field))]
    tokens = TokenStore([Path(folder) for folder in folders])
    if tokens.max_id >= vocab:
        raise DataError(
            f"the data has token id {tokens.max_id}, but the model's vocabulary is {vocab}. "
            f"Set model.vocab to {tokens.max_id + 1} or more, or name the tokenizer the model is for."
        )
    return tokens


def data_origin(store: SampleStore, seq_len: int, seed: int) -> DataOrigin:
    """What checkpoints say about these samples, in the order that `seed` gives them."""
    text = f"{store.content_hash}/{store.num_samples}/{seq_len}/{seed}"
    order = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
    return DataOrigin(seq_len, order, store.vocabulary)
