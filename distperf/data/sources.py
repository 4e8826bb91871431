"""Which files a list of globs means, and a fingerprint of them."""

from __future__ import annotations

import glob
import hashlib
import json
import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from distperf.errors import DataError

FORMAT_VERSION = 2  # raised when the same files would give other shards, so that old caches are not used


@dataclass(frozen=True)
class Source:
    """One document: a regular file that is not empty."""

    path: Path
    size_bytes: int
    mtime_ns: int


def find_sources(globs: Sequence[str]) -> tuple[Source, ...]:
    """The files that globs (with `**`) match: absolute, sorted, each once, empty ones left out.

    Raises: DataError for a glob that matches nothing, a file that cannot be read, or no text at all.
    """
    sources = [_look_at(path) for path in sorted({path for pattern in globs for path in _match(pattern)})]
    found = tuple(source for source in sources if source.size_bytes)
    if not found:
        raise DataError(f"no text in {', '.join(globs)}: all {len(sources)} files are empty")
    return found


def fingerprint(sources: Sequence[Source], tokenizer_hash: str, field: str) -> str:
    """One name for what these files give with this tokenizer, as far as sizes and times tell."""
    files = [(str(source.path), source.size_bytes, source.mtime_ns) for source in sources]
    text = json.dumps([FORMAT_VERSION, tokenizer_hash, field, files])
    return hashlib.blake2b(text.encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()


def _match(pattern: str) -> list[Path]:
    names = [os.path.abspath(name) for name in glob.glob(pattern, recursive=True) if not os.path.isdir(name)]
    if not names:
        raise DataError(f"no text file matches {pattern!r} in {_searched_folder(pattern)}")
    return [Path(name) for name in names]


def _searched_folder(pattern: str) -> str:
    """The part of a glob before its first wildcard, or as much of it as there is."""
    plain = pattern if not glob.has_magic(pattern) else pattern[: _first_magic(pattern)]
    folder = os.path.abspath(os.path.dirname(plain))
    return folder if os.path.isdir(folder) else f"{folder}, which does not exist"


def _first_magic(pattern: str) -> int:
    return min(pattern.index(sign) for sign in "*?[" if sign in pattern)


def _look_at(path: Path) -> Source:
    try:
        found = path.stat()
    except OSError as error:
        raise DataError(f"cannot read text {path}: {error.strerror}") from error
    if not stat.S_ISREG(found.st_mode):
        raise DataError(f"cannot read text {path}: not a regular file")
    return Source(path, found.st_size, found.st_mtime_ns)
