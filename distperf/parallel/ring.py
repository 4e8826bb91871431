"""Attention over positions that ranks share, by sending keys and values round.

Each rank keeps its queries. In N steps every rank's keys and values come by; each step's result is exact for those
keys alone, and results are merged by the log-sum-exp of their scores. In the backward pass keys and values go round
again, and their gradients with them, one rank behind.

Note [Zigzag]: under a causal mask the last positions see everything and the first next to nothing. So the sequence is
cut into 2N pieces, and rank r holds pieces r and 2N - 1 - r. Then a step is either the rank's own positions, a causal
square, or half a square: all its queries with the other's early piece, or its late queries with all of the other's.
Every rank does the same work in every step.

Shapes: N ranks, B samples, H query heads, G key/value heads, s = S / N positions of one rank, K head size; w bytes of
an element.

Source: Liu et al., arXiv:2310.01889 (ring attention); Brandon et al., arXiv:2311.09431 (balance under a causal mask).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from distperf.measure.stopwatch import COMMUNICATION
from distperf.parallel.collectives import Pending
from distperf.parallel.flash import attend_block, attend_block_backward, merge
from distperf.parallel.mesh import named_group

KEYS_TAG, GRADS_TAG = 3, 4  # two streams between the same ranks
ALL = slice(None)


@dataclass(frozen=True)
class Ring:
    """`Attention.attend` where rank r of `group` holds pieces r and 2N - 1 - r of 2N of the sequence."""

    group: dist.ProcessGroup

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attend as in one process, but for rounding. q (B, H, s, K), k and v (B, G, s, K); as q.

        Cost: sends (N - 1) * 2 * B * G * s * K * w bytes a rank, while it computes; in the backward pass as many again
        and N * 2 * B * G * s * K * 4, gradients in fp32. Peak extra, there: k and v twice, and gradients in fp32, of q
        once and of k and v twice.
        """
        out: Tensor = ring_attention(q, k, v, self.group.group_name)[0]
        return out

    def sources(self) -> list[int]:
        """Whose keys and values are here in each step; every rank begins with its own."""
        rank, size = self.group.rank(), self.group.size()
        return [(rank - step) % size for step in range(size)]

    def pass_on(self, sent: Tensor, tag: int) -> tuple[Tensor, Pending]:
        """Send to the next rank, and where what the one before sends will be once waited for."""
        rank, size = self.group.rank(), self.group.size()
        received = torch.empty_like(sent)
        operations = [
            dist.P2POp(dist.isend, sent, group=self.group, tag=tag, group_peer=(rank + 1) % size),
            dist.P2POp(dist.irecv, received, group=self.group, tag=tag, group_peer=(rank - 1) % size),
        ]
        return received, Pending(dist.batch_isend_irecv(operations), holds=[sent, received])


def meeting(rank: int, source: int, length: int) -> tuple[slice, slice, bool]:
    """Which of a rank's `length` queries see which of the source's keys, and whether as a causal square."""
    if source == rank:
        return ALL, ALL, True
    if source < rank:
        return ALL, slice(length // 2), False
    return slice(length // 2, None), ALL, False


@torch.library.custom_op("distperf::ring_attention", mutates_args=())
def ring_attention(q: Tensor, k: Tensor, v: Tensor, group: str) -> tuple[Tensor, Tensor]:
    """Output as q, in memory (B, s, H, K), and log-sum-exp (B, H, s) fp32. Cost: at `Ring`.

    One operator, so that recomputation can keep its results rather than send again, and compilers let it be.
    """
    out, lse = _forward(q, torch.stack((k, v)), Ring(named_group(group)))
    return out.to(q.dtype).transpose(1, 2).contiguous().transpose(1, 2), lse


@torch.library.custom_op("distperf::ring_attention_backward", mutates_args=())
def ring_attention_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, group: str
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v. Cost: at `Ring`."""
    ring = Ring(named_group(group))
    dq, dkv = _backward(grad, q, torch.stack((k, v)), out, lse, ring)
    return dq.to(q.dtype).contiguous(), dkv[0].to(k.dtype, copy=True), dkv[1].to(v.dtype, copy=True)


@ring_attention.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, group: str) -> tuple[Tensor, Tensor]:
    return torch.empty_like(q.transpose(1, 2), memory_format=torch.contiguous_format).transpose(
        1, 2
    ), q.new_empty(q.shape[:3], dtype=torch.float32)


@ring_attention_backward.register_fake
def _(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, group: str
) -> tuple[Tensor, Tensor, Tensor]:
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


def _keep(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor, str], output: tuple[Tensor, Tensor]) -> None:
    *qkv, ctx.group = inputs
    ctx.save_for_backward(*qkv, *output)


def _go_back(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    return *ring_attention_backward(grad, *ctx.saved_tensors, ctx.group), None


ring_attention.register_autograd(_go_back, setup_context=_keep)


def _forward(q: Tensor, kv: Tensor, ring: Ring) -> tuple[Tensor, Tensor]:
    """Output (B, H, s, K) and log-sum-exp (B, H, s), both fp32, over all ranks' keys. kv (2, B, G, s, K)."""
    own, *others = ring.sources()
    arriving = ring.pass_on(kv, KEYS_TAG)
    out, lse = attend_block(q, *kv, causal=True)
    out, lse = out.to(torch.float32, copy=True), lse.clone(memory_format=torch.contiguous_format)
    for left, source in zip(reversed(range(len(others))), others, strict=True):
        kv = _arrived(arriving)
        if left:
            arriving = ring.pass_on(kv, KEYS_TAG)
        rows, seen, causal = meeting(own, source, q.shape[2])
        part = attend_block(q[:, :, rows], *kv[:, :, :, seen], causal=causal)
        merge(out[:, :, rows], lse[:, :, rows], *part)
    return out, lse


def _backward(
    grad: Tensor, q: Tensor, kv: Tensor, out: Tensor, lse: Tensor, ring: Ring
) -> tuple[Tensor, Tensor]:
    """Gradients of q, and of this rank's kv from all ranks' queries, fp32. Those of a kv follow it round."""
    sources = ring.sources()
    dq = torch.zeros_like(q, dtype=torch.float32)
    arriving, following = (kv, Pending()), (torch.zeros_like(kv, dtype=torch.float32), Pending())
    for left, source in zip(reversed(range(len(sources))), sources, strict=True):
        kv = _arrived(arriving)
        if left:
            arriving = ring.pass_on(kv, KEYS_TAG)
        rows, seen, causal = meeting(sources[0], source, q.shape[2])
        keys, values = kv[:, :, :, seen]
        theirs = (t[:, :, rows] for t in (out, lse))
        part_q, part_k, part_v = attend_block_backward(
            grad[:, :, rows], q[:, :, rows], keys, values, *theirs, causal=causal
        )
        dq[:, :, rows] += part_q
        dkv = _arrived(following)
        dkv[0, :, :, seen] += part_k
        dkv[1, :, :, seen] += part_v
        following = ring.pass_on(dkv, GRADS_TAG)
    return dq, _arrived(following)


def _arrived(message: tuple[Tensor, Pending]) -> Tensor:
    received, pending = message
    with COMMUNICATION:
        pending.wait()
    return received
