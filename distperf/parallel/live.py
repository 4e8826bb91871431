"""A bucket's memory on one rank. Legend: P elements of a bucket, N ranks, S = P / N of a shard."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from distperf.parallel.buckets import BUCKET_BYTES, Bucket, Overlap, Slot, overlaps
from distperf.parallel.collectives import Peers


@dataclass(frozen=True)
class FlatPlan:
    """How a flat engine keeps things."""

    stage: int
    dtype: torch.dtype  # of working weights
    accumulates: bool  # a step has several micro-batches, whose gradients are added up in fp32
    pipelined: bool = (
        False  # backward passes of micro-batches and stages interleave, so nothing is sent before the last
    )
    bucket_bytes: int = BUCKET_BYTES

    @property
    def gradient_dtype(self) -> torch.dtype:
        """What gradients are kept in."""
        return torch.float32 if self.accumulates else self.dtype


@dataclass
class LiveBucket:
    """The tensors behind a bucket, and how far the running backward pass has got with it.

    working (P,): the model's parameters are views of it. grads: (P,), in stage 2 (S,), empty for frozen buckets.
    `sums`: ranks with copies of this shard, over which its gradients are added up too.
    """

    at: int  # among the buckets, of which those that are not trained come last
    bucket: Bucket
    peers: Peers
    sums: tuple[Peers, ...]
    working: Tensor
    grads: Tensor
    arriving: Tensor | None = None  # (P,) where gradients are put
    seen: set[int] = field(default_factory=set)  # slots of `arriving` that hold a gradient
    awaited: set[int] = field(default_factory=set)  # slots still without a gradient in this backward pass
    reduced: bool = False  # `grads` holds sums of earlier micro-batches of this step

    @classmethod
    def allocate(
        cls,
        at: int,
        bucket: Bucket,
        plan: FlatPlan,
        peers: Peers,
        sums: tuple[Peers, ...],
        device: torch.device,
    ) -> LiveBucket:
        """Memory for a bucket: zeros so far."""
        working = torch.zeros(bucket.size, dtype=plan.dtype, device=device)
        if not bucket.trainable:
            return cls(at, bucket, peers, sums, working, torch.empty(0, device=device))
        length = bucket.size // peers.size if plan.stage == 2 else bucket.size
        grads = torch.zeros(length, dtype=plan.gradient_dtype, device=device)
        return cls(at, bucket, peers, sums, working, grads)

    def own(self, kept: Tensor) -> Tensor:
        """(S,) this rank's shard of something kept whole or only as that shard."""
        return kept if kept.numel() == self.bucket.size // self.peers.size else self.peers.shard(kept)

    def own_parts(self) -> list[Overlap]:
        """What this rank's shard holds of which parameter."""
        return overlaps(self.bucket, *self.bucket.shard(self.peers.rank, self.peers.size))

    def forget(self) -> None:
        """Let go of this step's gradients."""
        self.seen.clear()
        self.reduced = False


def slot_view(full: Tensor, slot: Slot) -> Tensor:
    """The parameter's place in a bucket's flat tensor, in its own shape."""
    return full[slot.offset : slot.offset + slot.numel].view(slot.shape)
