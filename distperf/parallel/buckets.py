"""Which parameters travel together, and who owns which part of a bucket. Pure.

A bucket is one flat buffer: its parameters one after the other, padded so that it divides into equal shards, one
per rank. Buckets follow the backward pass: parameters registered last get their gradients first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from distperf.optim.groups import Treatment

# Large enough to fill a link, small enough that the first reduction starts early in backward and buffers stay small.
BUCKET_BYTES = 12 * 2**20


@dataclass(frozen=True)
class ParameterInfo:
    """What the layout needs to know of a parameter."""

    fqn: str
    shape: tuple[int, ...]
    numel: int
    trainable: bool
    treatment: Treatment


@dataclass(frozen=True)
class Slot:
    """A parameter's place in its bucket: elements [offset, offset + numel)."""

    fqn: str
    shape: tuple[int, ...]
    offset: int
    numel: int


@dataclass(frozen=True)
class Bucket:
    """Parameters communicated together. `size` is a multiple of the number of shards, `used` without padding."""

    slots: tuple[Slot, ...]
    size: int
    used: int
    trainable: bool
    treatment: Treatment

    def shard(self, rank: int, num_shards: int) -> tuple[int, int]:
        """Elements [start, stop) of the bucket that this rank owns."""
        length = self.size // num_shards
        return rank * length, (rank + 1) * length


@dataclass(frozen=True)
class Overlap:
    """The part of a slot that lies in a shard: `length` elements, from three points of view."""

    slot: Slot
    in_shard: int  # first element, counted from the shard's start
    in_parameter: int  # first element, counted from the parameter's start
    length: int


_Kind = tuple[bool, Treatment]  # parameters of one bucket are alike in these


def layout(parameters: Sequence[ParameterInfo], num_shards: int, bucket_numel: int) -> tuple[Bucket, ...]:
    """Buckets in the order in which the backward pass completes them; frozen parameters come last.

    A bucket holds parameters that are treated alike and is closed when the next one would take it past
    `bucket_numel` elements; a larger parameter has a bucket of its own.
    """
    open_: dict[_Kind, list[ParameterInfo]] = {}
    closed: list[
        tuple[int, Bucket]
    ] = []  # with the place of the last parameter: the bucket is complete there

    def close(kind: _Kind, at: int) -> None:
        closed.append((at, _bucket(open_.pop(kind), num_shards)))

    last_at: dict[_Kind, int] = {}
    for at, parameter in enumerate(reversed(parameters)):
        kind = (parameter.trainable, parameter.treatment)
        held = open_.get(kind, [])
        if held and sum(p.numel for p in held) + parameter.numel > bucket_numel:
            close(kind, last_at[kind])
        open_.setdefault(kind, []).append(parameter)
        last_at[kind] = at
    for kind in list(open_):
        close(kind, last_at[kind])
    return tuple(bucket for _, bucket in sorted(closed, key=lambda c: (not c[1].trainable, c[0])))


def _bucket(parameters: Sequence[ParameterInfo], num_shards: int) -> Bucket:
    slots, used = [], 0
    for parameter in parameters:
        slots.append(Slot(parameter.fqn, parameter.shape, used, parameter.numel))
        used += parameter.numel
    size = -(-used // num_shards) * num_shards
    return Bucket(tuple(slots), size, used, parameters[0].trainable, parameters[0].treatment)


def overlaps(bucket: Bucket, start: int, stop: int) -> list[Overlap]:
    """The part of each parameter that lies in elements [start, stop) of the bucket, where there is one."""
    found = []
    for slot in bucket.slots:
        low, high = max(start, slot.offset), min(stop, slot.offset + slot.numel)
        if low < high:
            found.append(Overlap(slot, low - start, low - slot.offset, high - low))
    return found
