"""Read a whole checkpoint and name whatever in it is not what was written. No torch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from distperf.checkpoint.blocks import CheckedReader, read_checked
from distperf.checkpoint.index import INDEX, Index, read_index, tensors_in
from distperf.checkpoint.manifest import MANIFEST, Manifest, read_manifest
from distperf.errors import CheckpointCorrupt, CheckpointError

NAMED = 5  # tensors that a message names


@dataclass(frozen=True)
class Damage:
    """A damaged file, what is wrong with it, and the tensors that have values in the damaged bytes."""

    path: Path
    problem: str
    tensors: tuple[str, ...] = ()


def verify(path: Path) -> list[Damage]:
    """All damaged files of one checkpoint; the manifest first, without which nothing is known of the others.

    Cost: reads every file once, a block at a time.
    """
    try:
        manifest = read_manifest(path)
    except CheckpointError as error:
        return [Damage(path / MANIFEST, str(error))]
    return damaged_files(path, manifest, manifest.files)


def damaged_files(path: Path, manifest: Manifest, names: Iterable[str]) -> list[Damage]:
    """Those of the named files that are damaged."""
    index = _readable_index(path, manifest)
    return [damage for name in sorted(names) for damage in _damage(path, manifest, name, index)]


def load_index(path: Path, manifest: Manifest) -> Index:
    """Where a checkpoint's tensors lie. Raises CheckpointCorrupt."""
    if INDEX not in manifest.files:
        raise CheckpointCorrupt(f"{path}: its manifest names no {INDEX}", MANIFEST)
    return read_index(read_checked(path / INDEX, manifest.files[INDEX], manifest.block_bytes))


def named(error: CheckpointCorrupt, index: Index) -> str:
    """The error's text with the names of the tensors concerned."""
    names = tensors_in(index, error.file, *error.span)
    shown = ", ".join(names[:NAMED]) + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")
    return f"{error} (in {shown})" if names else str(error)


def _readable_index(path: Path, manifest: Manifest) -> Index:
    if not (path / INDEX).exists():
        return {}
    try:
        return load_index(path, manifest)
    except CheckpointCorrupt:
        return {}


def _damage(path: Path, manifest: Manifest, name: str, index: Index) -> Iterator[Damage]:
    """One at most: the first of a file's problems, the tensors of all."""
    file, sums = path / name, manifest.files[name]
    try:
        size = file.stat().st_size
    except OSError as error:
        yield Damage(file, f"{file}: {error.strerror}", _in(index, name, [(0, sums.bytes)]))
        return
    if size != sums.bytes:
        lost = (min(size, sums.bytes), sums.bytes)
        problem = f"{file}: {size} bytes, {sums.bytes} were written"
        yield Damage(file, problem, _in(index, name, [lost]))
        return
    try:
        with CheckedReader(file, sums, manifest.block_bytes) as reader:
            found = list(reader.damaged())
    except CheckpointCorrupt as error:
        found = [error]
    if found:
        more = f", and {len(found) - 1} more blocks" if len(found) > 1 else ""
        yield Damage(file, f"{found[0]}{more}", _in(index, name, [error.span for error in found]))


def _in(index: Index, file: str, spans: Iterable[tuple[int, int]]) -> tuple[str, ...]:
    return tuple(sorted({name for start, stop in spans for name in tensors_in(index, file, start, stop)}))
