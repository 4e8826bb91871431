"""A bucket's memory on one rank. Legend: P elements of a bucket, N ranks, S = P / N of a shard."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from distperf.optim.adamw import Moments
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

    working (P,): the model's parameters are views of it. master: fp32 weights that the optimizer moves, (P,) in
    stage 0 and (S,) otherwise; in fp32 and for frozen parameters a view of `working`. moments: like master.
    grads: (P,), in stage 2 (S,). Frozen buckets have empty grads and moments.
    `sums`: ranks with copies of this shard, over which its gradients are added up too.
    """

    bucket: Bucket
    peers: Peers
    sums: tuple[Peers, ...]
    working: Tensor
    master: Tensor
    grads: Tensor
    moments: Moments
    arriving: Tensor | None = None  # (P,) where gradients are put
    seen: set[int] = field(default_factory=set)  # slots of `arriving` that hold a gradient
    awaited: set[int] = field(default_factory=set)  # slots still without a gradient in this backward pass
    reduced: bool = False  # `grads` holds sums of earlier micro-batches of this step

    @classmethod
    def allocate(
        cls, bucket: Bucket, plan: FlatPlan, peers: Peers, sums: tuple[Peers, ...], device: torch.device
    ) -> LiveBucket:
        """Memory for a bucket: zeros so far."""
        working = torch.zeros(bucket.size, dtype=plan.dtype, device=device)
        kept = working if plan.stage == 0 else peers.shard(working)
        if not bucket.trainable:
            nothing = torch.empty(0, device=device)
            return cls(bucket, peers, sums, working, kept, nothing, Moments.zeros_like(nothing))
        master = kept.float()  # the same tensor where it is fp32 already
        length = bucket.size // peers.size if plan.stage == 2 else bucket.size
        grads = torch.zeros(length, dtype=plan.gradient_dtype, device=device)
        return cls(bucket, peers, sums, working, master, grads, Moments.zeros_like(master))

    @property
    def has_master(self) -> bool:
        """Whether weights are kept a second time, in fp32."""
        return self.master.dtype != self.working.dtype

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

    def kinds(self) -> dict[str, Tensor]:
        """What a checkpoint keeps, by the first part of its name."""
        if not self.bucket.trainable:
            return {"model": self.master}
        return {
            "model": self.master,
            "optimizer.exp_avg": self.moments.exp_avg,
            "optimizer.exp_avg_sq": self.moments.exp_avg_sq,
        }


def slot_view(full: Tensor, slot: Slot) -> Tensor:
    """The parameter's place in a bucket's flat tensor, in its own shape."""
    return full[slot.offset : slot.offset + slot.numel].view(slot.shape)
