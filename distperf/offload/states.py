"""The optimizer's state of every bucket, some of it in memory, some in a tier: one seam for the engine.

    resident    where the weights are, or on the host, as long as the run lasts
    on disk     in memory only while it is updated

Legend: K elements of a bucket that this rank updates.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from distperf.measure.memory import storage_bytes
from distperf.offload.spans import Span
from distperf.optim.adamw import Moments


@dataclass(frozen=True)
class State:
    """The state of a span: fp32 weights and moments; a frozen bucket has weights alone, of the working dtype.

    `is_working`: the weights are the working copy itself, so there is nothing to bring up to date.
    """

    span: Span
    master: Tensor
    moments: Moments | None
    is_working: bool

    @property
    def kinds(self) -> dict[str, Tensor]:
        """What a checkpoint keeps, by the first part of its name."""
        found = {"model": self.master}
        if self.moments is not None:
            found["optimizer.exp_avg"] = self.moments.exp_avg
            found["optimizer.exp_avg_sq"] = self.moments.exp_avg_sq
        return found

    @property
    def kept(self) -> list[Tensor]:
        """Tensors that are there besides the working copy."""
        moments = [] if self.moments is None else [self.moments.exp_avg, self.moments.exp_avg_sq]
        return moments if self.is_working else [self.master, *moments]


class Tier(Protocol):
    """Keeps the states of some spans."""

    def prepare(self) -> None:
        """An update is near: whatever can be done beforehand may begin."""
        ...

    def take(self, span: Span) -> State:
        """The state of a span, to be changed. Spans come in order, all of them in every update."""
        ...

    def give(self, state: State) -> None:
        """It was changed; its tensors may not be used any more."""
        ...

    def view(self, span: Span) -> State:
        """Live storage, to be looked at or overwritten between updates; see `settle`."""
        ...

    def settle(self) -> None:
        """What views were given was overwritten. No view may be used any more."""
        ...

    def memory(self) -> dict[str, int]:
        """Bytes: optimizer_bytes, buckets_bytes (transient), host_bytes, disk_bytes."""
        ...

    def close(self) -> None:
        """Remove what would outlive the process."""
        ...


class Resident:
    """States that stay in memory: that of `device`, which is the weights', or the host's."""

    def __init__(
        self,
        spans: Sequence[Span],
        working: Sequence[Tensor],
        device: torch.device,
        *,
        moves: bool = False,
        on_host: bool = False,
    ) -> None:
        """`working`: (K,) weights of each bucket. `moves`: these are elsewhere. `on_host`: counted as the host's."""
        self._on_host = on_host
        self._states = {span: _resident(span, working[span.bucket], device, moves) for span in spans}

    def prepare(self) -> None:
        """Nothing to do."""

    def take(self, span: Span) -> State:
        """As `view`."""
        return self._states[span]

    def give(self, state: State) -> None:
        """Nothing to do."""

    def view(self, span: Span) -> State:
        """The state itself."""
        return self._states[span]

    def settle(self) -> None:
        """Nothing to do."""

    def memory(self) -> dict[str, int]:
        """As `Tier.memory`."""
        held = storage_bytes(tensor for state in self._states.values() for tensor in state.kept)
        return {"host_bytes" if self._on_host else "optimizer_bytes": held}

    def close(self) -> None:
        """Nothing to do."""


def frozen(kept: Tensor) -> State:
    """What a bucket has that is not trained."""
    return State(Span(-1, 0, kept.numel(), away=False), kept, None, is_working=True)


def _resident(span: Span, working: Tensor, device: torch.device, moves: bool) -> State:
    part = working[span.part]
    if part.dtype == torch.float32 and not moves:
        return State(span, part, Moments.zeros_like(part), is_working=True)
    master, exp_avg, exp_avg_sq = (host_zeros(span.numel, device) for _ in range(3))
    return State(span, master, Moments(exp_avg, exp_avg_sq), is_working=False)


def host_zeros(numel: int, device: torch.device, dtype: torch.dtype = torch.float32) -> Tensor:
    """(numel,) zeros; pinned on the host of a machine with devices, so that they copy without stopping anyone."""
    pinned = device.type == "cpu" and torch.cuda.is_available()
    return torch.zeros(numel, dtype=dtype, device=device, pin_memory=pinned)


class States:
    """The states of all buckets, each span's from where it rests."""

    def __init__(self, spans: Sequence[Sequence[Span]], resident: Tier, tier: Tier | None = None) -> None:
        self._spans = spans
        self._resident, self._tier = resident, tier

    def prepare(self) -> None:
        """An update is near."""
        if self._tier is not None:
            self._tier.prepare()

    def updating(self, bucket: int, spans: Sequence[Span] | None = None) -> Iterator[State]:
        """The states of a bucket (or of some spans of it), each to be changed before the next is asked for.

        What rests in a tier comes in order of buckets, all of it in every update.
        """
        for span in self._spans[bucket] if spans is None else spans:
            tier = self._home(span)
            state = tier.take(span)
            yield state
            tier.give(state)

    def views(self, bucket: int) -> list[State]:
        """Live storage of a bucket, to be looked at or overwritten between updates."""
        return [self._home(span).view(span) for span in self._spans[bucket]]

    def settle(self) -> None:
        """Views that were given were overwritten, or are done with."""
        if self._tier is not None:
            self._tier.settle()

    def close(self) -> None:
        """Remove what would outlive the process."""
        if self._tier is not None:
            self._tier.close()

    def away(self, bucket: int) -> list[Span]:
        """Spans of a bucket that rest in the tier."""
        return [span for span in self._spans[bucket] if span.away]

    def resident(self, bucket: int) -> list[Span]:
        """Spans of a bucket that stay in memory."""
        return [span for span in self._spans[bucket] if not span.away]

    def memory(self) -> dict[str, int]:
        """As `Tier.memory`, of all."""
        found: dict[str, int] = {}
        for tier in (self._resident, self._tier):
            for kind, size in (tier.memory() if tier is not None else {}).items():
                found[kind] = found.get(kind, 0) + size
        return found

    def _home(self, span: Span) -> Tier:
        if not span.away:
            return self._resident
        assert self._tier is not None, "only a tier has spans away"
        return self._tier
