"""From what a recipe says of its data to samples: text is tokenised into the cache, shards and datasets are opened."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from distperf.data.cache import cached_text
from distperf.data.own import open_own
from distperf.data.samples import held_back, num_windows
from distperf.data.shards import TokenStore, refuse_other_ids
from distperf.data.sources import find_sources
from distperf.data.store import JoinedStore, MixedStore, SampleStore, SyntheticStore, WindowStore
from distperf.data.tokenizer import load_tokenizer
from distperf.errors import DataError
from distperf.recipe.runspec import DataSpec


@dataclass(frozen=True)
class Samples:
    """What a run trains on, and what it is evaluated on, if anything."""

    training: SampleStore
    validation: SampleStore | None


def open_samples(spec: DataSpec, vocab: int) -> Samples:
    """Both. Raises: as `open_store` and `open_validation`; for data.factory, what that function raises."""
    if spec.factory is not None:
        return Samples(*open_own(spec, vocab))
    return Samples(open_store(spec, vocab), open_validation(spec, vocab))


def open_store(spec: DataSpec, vocab: int) -> SampleStore:
    """The samples of text, shards, a mixture or synthetic ids that a run trains on, whose model has `vocab` ids.

    Raises: DataError, also where the data has an id that the model does not.
    """
    if spec.synthetic:
        return SyntheticStore(vocab, spec.seq_len)
    windows = [
        WindowStore(tokens, spec.seq_len, stop=_boundary(tokens, spec)) for tokens in _trained(spec, vocab)
    ]
    if not spec.mixture:
        return windows[0]
    return MixedStore(windows, [item.weight for item in spec.mixture], [item.path for item in spec.mixture])


def open_validation(spec: DataSpec, vocab: int) -> SampleStore | None:
    """The samples that are held back from training, if any; no token is in both.

    Raises: DataError, also where there are none, or a file is in both.
    """
    if not spec.validation and not spec.validation_share:
        return None
    if spec.validation:
        _refuse_shared(spec)
        windows = [WindowStore(tokens, spec.seq_len) for tokens in _held(spec, vocab)]
    else:
        windows = [
            WindowStore(tokens, spec.seq_len, start=_boundary(tokens, spec))
            for tokens in _trained(spec, vocab)
        ]
    held = windows[0] if len(windows) == 1 else JoinedStore(windows)
    if not held.num_samples:
        raise DataError(
            f"data.validation does not fill one sample of {spec.seq_len} + 1 tokens. Give it more, or make "
            "data.seq_len smaller"
        )
    return held


def _trained(spec: DataSpec, vocab: int) -> list[TokenStore]:
    """What is trained on, source by source."""
    if spec.mixture:
        return _sources(spec, (item.path for item in spec.mixture), vocab)
    return [_tokens(spec, spec.text, spec.tokens, vocab)]


def _held(spec: DataSpec, vocab: int) -> list[TokenStore]:
    """What data.validation lists: of the kind that is trained on."""
    if spec.mixture:
        return _sources(spec, spec.validation, vocab)
    text, folders = (spec.validation, ()) if spec.text else ((), spec.validation)
    return [_tokens(spec, text, folders, vocab)]


def _sources(spec: DataSpec, paths: Iterable[str], vocab: int) -> list[TokenStore]:
    """Each path a source of its own: a folder of shards, or a pattern of text files. Raises DataError."""
    named = {
        path: _tokens(spec, (), (path,), vocab) if os.path.isdir(path) else _tokens(spec, (path,), (), vocab)
        for path in paths
    }
    refuse_other_ids({path: tokens.manifests[0] for path, tokens in named.items()})
    return list(named.values())


def _tokens(spec: DataSpec, text: Sequence[str], folders: Sequence[str], vocab: int) -> TokenStore:
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
    elif spec.mixture:
        trained, held = (_files(item.path for item in spec.mixture), _files(spec.validation))
    else:
        trained, held = _files(spec.tokens), _files(spec.validation)
    if both := sorted(trained & held):
        raise DataError(
            f"data.validation has {both[0]} (and {len(both) - 1} more), which is trained on too. Take it out of one"
        )


def _files(paths: Iterable[str]) -> set[Path]:
    """What paths mean: folders as such, else the files that match."""
    return {
        found
        for path in paths
        for found in (
            [Path(path).resolve()] if os.path.isdir(path) else [s.path for s in find_sources([path])]
        )
    }
