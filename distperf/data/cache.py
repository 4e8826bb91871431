"""Token shards of text files, made once and found again by every later run and rank."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from distperf.data.manifest import MANIFEST
from distperf.data.prepare import FIELD, prepare_sources
from distperf.data.sources import Source, find_sources, fingerprint
from distperf.data.tokenizer import Tokenizer
from distperf.errors import DataError

CACHE_ENV = "DISTPERF_CACHE"
REMEDY = (
    f"Set {CACHE_ENV} to a folder that can be written, or run `distperf data prepare` and name its folder "
    "under data.tokens."
)


def cache_root() -> Path:
    """$DISTPERF_CACHE, else $XDG_CACHE_HOME/distperf, else ~/.cache/distperf. Raises DataError."""
    if named := os.environ.get(CACHE_ENV):
        return Path(named)
    if named := os.environ.get("XDG_CACHE_HOME"):
        return Path(named) / "distperf"
    try:
        return Path.home() / ".cache" / "distperf"
    except RuntimeError as error:  # HOME is not set and the user has no entry in the password file
        raise DataError(f"no folder to keep token shards in: this user has no home. {REMEDY}") from error


def cached_text(globs: Sequence[str], tokenizer: Tokenizer, field: str = FIELD) -> Path:
    """A folder with the shards of these files, from the cache or made now.

    Processes that want the same shards at once take turns, so one of them works and the others find the
    result. Where the file system has no locks all of them work, and the first to finish wins: nothing is ever
    half there.

    Raises: DataError, also where the cache cannot be written.
    """
    sources = find_sources(globs)
    folder = cache_root() / "data" / fingerprint(sources, tokenizer.hash, field)
    if not (folder / MANIFEST).exists():
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            turn = folder.with_suffix(".lock").open("w")
        except OSError as error:
            raise DataError(
                f"cannot keep token shards in {folder.parent}: {error.strerror}. {REMEDY}"
            ) from error
        with turn, _locked(turn.fileno()):
            _make(sources, tokenizer, folder, field)
    return folder


def _make(sources: Sequence[Source], tokenizer: Tokenizer, folder: Path, field: str) -> None:
    if (folder / MANIFEST).exists():
        return
    try:
        prepare_sources(sources, tokenizer, folder, field=field)
    except DataError:
        if not (folder / MANIFEST).exists():  # else: lost the race, and the winner's shards are as good
            raise


@contextmanager
def _locked(fd: int) -> Iterator[None]:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
    except OSError:
        pass  # some network file systems have none; see cached_text
    yield  # the lock ends with the file, however this process ends
