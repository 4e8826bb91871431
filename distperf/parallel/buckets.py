"""Which parameters travel together, and who owns which part of a bucket. Pure.

A bucket is one flat buffer: its parameters (of each the block that this rank holds) one after the other, padded so
that it divides into equal shards, one per rank. Buckets follow the backward pass: parameters registered last get
their gradients first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from distperf.optim.groups import Treatment

# Large enough to fill a link, small enough that the first reduction starts early in backward and buffers stay small.
BUCKET_BYTES = 12 * 2**20


@dataclass(frozen=True)
class ParameterInfo:
    """What the layout needs to know of a parameter.

    A rank holds a block of it: the whole, but for tensor-parallel ranks, over which it may be `divided`.
    """

    fqn: str
    shape: tuple[int, ...]  # of the whole
    local_shape: tuple[int, ...]  # of this rank's block
    offsets: tuple[int, ...]  # where the block starts in the whole
    trainable: bool
    treatment: Treatment
    divided: bool = False
    tied: bool = False  # another pipeline stage has it too

    @property
    def numel(self) -> int:
        """Elements of this rank's block."""
        return math.prod(self.local_shape)


@dataclass(frozen=True)
class Slot:
    """The place of a parameter's block in its bucket: elements [offset, offset + numel)."""

    info: ParameterInfo
    offset: int

    @property
    def fqn(self) -> str:
        """The parameter's name."""
        return self.info.fqn

    @property
    def shape(self) -> tuple[int, ...]:
        """Of this rank's block."""
        return self.info.local_shape

    @property
    def numel(self) -> int:
        """Elements of this rank's block."""
        return self.info.numel


@dataclass(frozen=True)
class Bucket:
    """Parameters communicated together. `size` is a multiple of the number of shards, `used` without padding.

    What a bucket holds is alike in all that is said of it.
    """

    slots: tuple[Slot, ...]
    size: int
    used: int
    trainable: bool
    treatment: Treatment
    divided: bool
    tied: bool

    def shard(self, rank: int, num_shards: int) -> tuple[int, int]:
        """Elements [start, stop) of the bucket that this rank owns."""
        length = self.size // num_shards
        return rank * length, (rank + 1) * length


@dataclass(frozen=True)
class Overlap:
    """The part of a slot that lies in a shard: `length` elements, from three points of view."""

    slot: Slot
    in_shard: int  # first element, counted from the shard's start
    in_block: int  # first element, counted from the start of the parameter's block
    length: int


_Kind = tuple[bool, Treatment, bool, str]  # parameters of one bucket are alike in these


def layout(parameters: Sequence[ParameterInfo], multiple_of: int, bucket_numel: int) -> tuple[Bucket, ...]:
    """Buckets in the order in which the backward pass completes them; frozen parameters come last.

    A bucket holds parameters that are treated alike and is closed when the next one would take it past
    `bucket_numel` elements; a larger parameter has a bucket of its own, and so has a tied one, so that it lies in
    the same place on the other pipeline stage. Sizes are rounded up to `multiple_of`.
    """
    open_: dict[_Kind, list[ParameterInfo]] = {}
    closed: list[
        tuple[int, Bucket]
    ] = []  # with the place of the last parameter: the bucket is complete there

    def close(kind: _Kind, at: int) -> None:
        closed.append((at, _bucket(open_.pop(kind), multiple_of)))

    last_at: dict[_Kind, int] = {}
    for at, parameter in enumerate(reversed(parameters)):
        kind = (
            parameter.trainable,
            parameter.treatment,
            parameter.divided,
            parameter.fqn if parameter.tied else "",
        )
        held = open_.get(kind, [])
        if held and sum(p.numel for p in held) + parameter.numel > bucket_numel:
            close(kind, last_at[kind])
        open_.setdefault(kind, []).append(parameter)
        last_at[kind] = at
    for kind in list(open_):
        close(kind, last_at[kind])
    return tuple(bucket for _, bucket in sorted(closed, key=lambda c: (not c[1].trainable, c[0])))


def _bucket(parameters: Sequence[ParameterInfo], multiple_of: int) -> Bucket:
    slots, used = [], 0
    for parameter in parameters:
        slots.append(Slot(parameter, used))
        used += parameter.numel
    size = -(-used // multiple_of) * multiple_of
    first = parameters[0]
    return Bucket(tuple(slots), size, used, first.trainable, first.treatment, first.divided, first.tied)


def overlaps(bucket: Bucket, start: int, stop: int) -> list[Overlap]:
    """The part of each parameter that lies in elements [start, stop) of the bucket, where there is one."""
    found = []
    for slot in bucket.slots:
        low, high = max(start, slot.offset), min(stop, slot.offset + slot.numel)
        if low < high:
            found.append(Overlap(slot, low - start, low - slot.offset, high - low))
    return found
