"""Values out of a checkpoint's files, however they were divided when saved, every byte of them checked.

Legend: B bytes of a buffer, n bytes that a rank owns.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import torch
from torch import Tensor

from distperf.checkpoint.blocks import CheckedReader
from distperf.checkpoint.index import Index, StoredTensor
from distperf.checkpoint.manifest import Manifest
from distperf.checkpoint.shards import State
from distperf.checkpoint.verify import load_index, named
from distperf.errors import CheckpointCorrupt, CheckpointError
from distperf.parallel.pieces import OwnedTensor, Piece

BUFFER_BYTES = 16 << 20

Shape = tuple[int, ...]
ReadInto = Callable[[int, memoryview], None]


@dataclass(frozen=True)
class Read:
    """A rectangle to fetch: `target`, from `first` on of a row-major block of `sizes`, at `start` in a file."""

    file: str
    start: int
    sizes: Shape
    first: Shape
    dtype: torch.dtype
    target: Tensor

    @property
    def span(self) -> tuple[int, int]:
        """Bytes of the file, from the first wanted row's to the last's."""
        row_bytes = math.prod(self.sizes[1:]) * self.dtype.itemsize
        start = self.start + (self.first[0] * row_bytes if self.first else 0)
        return start, start + (len(self.target) if self.sizes else 1) * row_bytes


class Stored:
    """A checkpoint opened for reading.

    Raises:
        CheckpointCorrupt: its index is not what was written.
    """

    def __init__(self, path: Path, manifest: Manifest) -> None:
        self.path, self.manifest = path, manifest
        self.index: Index = load_index(path, manifest)

    def fill(self, state: State) -> None:
        """Fill the pieces in place. Reads, in the order of the disk, the files and rows that they need, no others.

        Raises:
            CheckpointCorrupt: some bytes of them are not what was written; names file and tensors.
            CheckpointError: a tensor is missing there or has another shape.

        Cost: sends nothing. Peak extra B and a block, whatever the sizes of the pieces there and here.
        """
        reads = [read for fqn, owned in state.items() for read in self._reads(fqn, owned)]
        reads.sort(key=lambda read: (read.file, read.start))
        with torch.no_grad():
            for name, group in groupby(reads, key=lambda read: read.file):
                self._fetch(name, list(group))

    def files_for(self, state: State) -> list[str]:
        """The files that `fill` would read. Raises CheckpointError as it does."""
        return sorted({read.file for fqn, owned in state.items() for read in self._reads(fqn, owned)})

    def _fetch(self, name: str, reads: list[Read]) -> None:
        if name not in self.manifest.files:
            raise CheckpointCorrupt(f"{self.path}: the manifest names no {name}", name)
        try:
            with CheckedReader(
                self.path / name, self.manifest.files[name], self.manifest.block_bytes
            ) as file:
                file.expect(read.span for read in reads)
                for read in reads:
                    _copy(file.read_into, read.start, read.sizes, read.first, read.dtype, read.target)
        except CheckpointCorrupt as error:
            raise CheckpointCorrupt(named(error, self.index), error.file, error.span) from error

    def _reads(self, fqn: str, owned: OwnedTensor) -> Iterator[Read]:
        tensor = self.index.get(fqn)
        if tensor is None:
            raise CheckpointError(f"{self.path}: holds no {fqn}")
        if tensor.shape != tuple(owned.shape):
            raise CheckpointError(
                f"{self.path}: {fqn} is {tensor.shape} there and {tuple(owned.shape)} in this model"
            )
        for piece in owned.pieces:
            reads = list(_reads_of(tensor, piece))
            if sum(read.target.numel() for read in reads) != piece.tensor.numel():
                raise CheckpointError(f"{self.path}: holds only a part of {fqn}")
            yield from reads


def _reads_of(tensor: StoredTensor, piece: Piece) -> Iterator[Read]:
    """Where the values of a piece lie."""
    for stored in tensor.pieces:
        ends = zip(piece.offsets, piece.tensor.shape, stored.offsets, stored.sizes, strict=True)
        spans = [(max(o, p), min(o + n, p + m)) for o, n, p, m in ends]
        if any(start >= stop for start, stop in spans):
            continue
        first = tuple(start - p for (start, _), p in zip(spans, stored.offsets, strict=True))
        place = tuple(slice(s - o, e - o) for (s, e), o in zip(spans, piece.offsets, strict=True))
        dtype = getattr(torch, tensor.dtype)
        yield Read(stored.file, stored.start, stored.sizes, first, dtype, piece.tensor[place])


def _copy(read: ReadInto, start: int, sizes: Shape, first: Shape, dtype: torch.dtype, target: Tensor) -> None:
    """Carry out a Read. Whole rows that follow each other go where they belong, others through a buffer."""
    if not sizes:
        sizes, first, target = (1,), (0,), target.view(1)
    row_bytes = math.prod(sizes[1:]) * dtype.itemsize
    start += first[0] * row_bytes
    if tuple(target.shape[1:]) == sizes[1:] and _takes_bytes(target, dtype):
        read(start, target.view(-1).view(torch.uint8).numpy().data)
    elif row_bytes > BUFFER_BYTES:
        for at, row in enumerate(target):
            _copy(read, start + at * row_bytes, sizes[1:], first[1:], dtype, row)
    else:
        wanted = tuple(slice(f, f + n) for f, n in zip(first[1:], target.shape[1:], strict=True))
        at_once = min(len(target), max(1, BUFFER_BYTES // row_bytes))
        buffer = torch.empty(at_once * row_bytes, dtype=torch.uint8)
        for at in range(0, len(target), at_once):
            rows = target[at:][:at_once]
            part = buffer[: len(rows) * row_bytes]
            read(start + at * row_bytes, part.numpy().data)
            rows.copy_(part.view(dtype).view(len(rows), *sizes[1:])[(slice(None), *wanted)])


def _takes_bytes(target: Tensor, dtype: torch.dtype) -> bool:
    """Whether bytes can be read into it as they lie on disk."""
    return target.device.type == "cpu" and target.dtype == dtype and target.is_contiguous()
