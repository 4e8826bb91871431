"""Which part of the optimizer's state rests where, and where on disk. Pure.

A rank updates K elements of each bucket. They are cut into spans that move as one: small enough that a few of them in
memory cost little, large enough that a drive is at its best. Spans start at multiples of SPAN elements, so the update
works on the same vectors as without offload, to the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

SPAN = 1 << 20  # elements: 4 MiB of each kind
BLOCK = 4096  # bytes: what O_DIRECT asks of addresses, offsets and lengths on all common drives
FP32 = 4  # bytes: everything an optimizer keeps is fp32


@dataclass(frozen=True)
class Span:
    """Elements [start, stop) of what this rank updates of a bucket. `away`: their state rests in the tier."""

    bucket: int
    start: int
    stop: int
    away: bool

    @property
    def numel(self) -> int:
        """Elements."""
        return self.stop - self.start

    @property
    def part(self) -> slice:
        """Of what this rank updates of the bucket."""
        return slice(self.start, self.stop)


def whole(bucket: int, length: int) -> tuple[Span, ...]:
    """The one span of a bucket none of which is offloaded."""
    return (Span(bucket, 0, length, away=False),)


def cut(lengths: Sequence[int], fraction: float, longest: int = SPAN) -> list[tuple[Span, ...]]:
    """Spans of every bucket, of which at least this fraction of all elements is away, spread evenly."""
    found = []
    seen = away = 0
    for bucket, length in enumerate(lengths):
        own = []
        for start in range(0, max(length, 1), longest):  # one span, without elements, where there are none
            span = Span(bucket, start, min(start + longest, length), away=False)
            seen += span.numel
            if span.numel and away < fraction * seen:
                span = Span(bucket, span.start, span.stop, away=True)
                away += span.numel
            own.append(span)
        found.append(tuple(own))
    return found


@dataclass(frozen=True)
class Extent:
    """Where a span's state lies: bytes [offset, offset + bytes) of a drive's file, one kind every `stride` bytes."""

    drive: int
    offset: int
    stride: int
    kinds: int

    @property
    def bytes(self) -> int:
        """A multiple of BLOCK."""
        return self.stride * self.kinds


def padded(length: int) -> int:
    """Bytes rounded up to whole blocks."""
    return -(-length // BLOCK) * BLOCK


def lay_out(spans: Sequence[Span], kinds: int, drives: int) -> tuple[dict[Span, Extent], list[int]]:
    """A place for the state of every span, on whichever drive has least; and the bytes on each drive."""
    filled = [0] * drives
    places = {}
    for span in spans:
        drive = filled.index(min(filled))
        extent = Extent(drive, filled[drive], padded(span.numel * FP32), kinds)
        places[span] = extent
        filled[drive] += extent.bytes
    return places, filled


@dataclass(frozen=True)
class Place:
    """Where a region lies: bytes [offset, offset + bytes) of a drive's file, all multiples of BLOCK."""

    drive: int
    offset: int
    bytes: int


def shelve(lengths: Sequence[int], drives: int) -> tuple[list[Place], list[int]]:
    """A place for every region of so many bytes, on whichever drive has least; and the bytes on each drive."""
    filled = [0] * drives
    places = []
    for length in lengths:
        drive = filled.index(min(filled))
        places.append(Place(drive, filled[drive], padded(length)))
        filled[drive] += places[-1].bytes
    return places, filled


def following(before: int, at: int) -> int:
    """Which region is likely wanted after `at`: layers come in order going forward, and backward from the last."""
    return at + 1 if at > before else at - 1
