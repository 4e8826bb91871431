"""Reducing and gathering flat buffers over the ranks that share them, by the fastest means of the backend.

Legend: N ranks, P elements of a buffer (a multiple of N), S = P / N elements of a shard, w bytes per element.

Note [Exchange on gloo]: gloo's own reduce_scatter and all_gather took 2 to 5 times as long as sending each
shard straight to the rank that needs it (docs/benchmarks.md, Training). So there ranks send slices of the buffer
from where they lie, receive where they belong, and add up on arrival. It also lets bf16 travel as bf16 and be
added in fp32, which no backend's reduction does. NCCL's own collectives are used as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor

from distperf.parallel.scratch import Scratch

# Messages of one tag arrive in the order they were sent. Reductions and gathers may be started by different threads,
# so their order is the same on all ranks only within each kind.
REDUCE_TAG, GATHER_TAG = 1, 2

# Elements added up at a time: the fp32 sum of a bf16 bucket then stays in cache.
BLOCK = 1 << 16


@dataclass(frozen=True)
class Peers:
    """The ranks that share a buffer. `group` None: this rank alone, and nothing is sent.

    `exchanges`: see Note [Exchange on gloo], which is what tensors on the CPU travel by.
    """

    group: dist.ProcessGroup | None
    rank: int
    size: int
    exchanges: bool

    @classmethod
    def of(cls, group: dist.ProcessGroup | None, device: torch.device) -> Peers:
        """The members of a process group."""
        if group is None or group.size() == 1:
            return cls(None, 0, 1, exchanges=True)
        return cls(group, group.rank(), group.size(), exchanges=device.type == "cpu")

    def shard(self, full: Tensor) -> Tensor:
        """(S,) view: this rank's shard of `full` (P,)."""
        return full.view(self.size, -1)[self.rank]


@dataclass
class Pending:
    """Communication under way, and the tensors that it still needs."""

    works: Sequence[dist.Work] = ()
    then: Callable[[], None] | None = None
    holds: Sequence[Tensor] = field(default=())

    def wait(self) -> None:
        """Return when the result may be used."""
        for work in self.works:
            work.wait()
        if self.then is not None:
            self.then()
        self.works, self.then, self.holds = (), None, ()


def start_reduce(
    full: Tensor, out: Tensor, peers: Peers, scratch: Scratch, *, add: bool = False, tag: int = REDUCE_TAG
) -> Pending:
    """Sum of all ranks' `full` (P,), of which this rank gets its shard in `out` (S,); with `add`, added to it.

    Summed in fp32, in rank order, whatever the dtypes. `out` may be this rank's shard of `full`; the rest of
    `full` keeps its values and must not be changed until `wait` returns.

    Cost: sends (N - 1) * S * w bytes a rank; peak extra (N - 1) * S * w. NCCL: w is 4, extra P * 4 for bf16.
    """
    if peers.size == 1:
        in_place = out.data_ptr() == full.data_ptr()
        return Pending() if in_place else Pending(then=lambda: _sum_into(out, [full], add=add))
    if peers.exchanges:
        return _exchange_and_sum(full, out, peers, scratch, add=add, tag=tag)
    return _native_reduce(full, out, peers, add=add)


def start_gather(full: Tensor, peers: Peers, tag: int = GATHER_TAG) -> Pending:
    """Fill `full` (P,) on every rank with each rank's own shard of it, in place.

    Cost: sends (N - 1) * S * w bytes a rank; no extra memory.
    """
    if peers.size == 1:
        return Pending()
    own = peers.shard(full)
    if peers.exchanges:
        shards = full.view(peers.size, -1)
        works = _exchange(peers, lambda _: own, lambda peer: shards[peer], tag)
        return Pending(works, holds=[full])
    work = dist.all_gather_into_tensor(full, own, group=peers.group, async_op=True)
    return Pending([_started(work)], holds=[full])


def sum_in_place(flat: Tensor, peers: Peers, scratch: Scratch) -> None:
    """Set `flat` (P,) on every rank to the sum over all ranks, to the same bits everywhere.

    Cost: sends 2 * (N - 1) * S * w bytes a rank; peak extra as `start_reduce`.
    """
    start_reduce(flat, peers.shard(flat), peers, scratch).wait()
    start_gather(flat, peers).wait()


def _exchange_and_sum(
    full: Tensor, out: Tensor, peers: Peers, scratch: Scratch, *, add: bool, tag: int
) -> Pending:
    shards = full.view(peers.size, -1)
    received = scratch.take((peers.size - 1) * shards.shape[1], full.dtype)
    places = iter(received.view(peers.size - 1, -1))
    parts = [shards[rank] if rank == peers.rank else next(places) for rank in range(peers.size)]

    def then() -> None:
        _sum_into(out, parts, add=add)
        scratch.give(received)

    works = _exchange(peers, lambda peer: shards[peer], lambda peer: parts[peer], tag)
    return Pending(works, then, [full, received])


def _exchange(
    peers: Peers, outgoing: Callable[[int], Tensor], incoming: Callable[[int], Tensor], tag: int
) -> list[dist.Work]:
    """Send a tensor to every other rank and receive one from each, in turns, so that no rank is flooded."""
    works = []
    for distance in range(1, peers.size):
        source, target = (peers.rank - distance) % peers.size, (peers.rank + distance) % peers.size
        works.append(_started(dist.irecv(incoming(source), group=peers.group, group_src=source, tag=tag)))
        works.append(_started(dist.isend(outgoing(target), group=peers.group, group_dst=target, tag=tag)))
    return works


def _native_reduce(full: Tensor, out: Tensor, peers: Peers, *, add: bool) -> Pending:
    wide = full.float()
    summed = peers.shard(wide)
    work = dist.reduce_scatter_tensor(summed, wide, group=peers.group, async_op=True)
    return Pending([_started(work)], lambda: _sum_into(out, [summed], add=add), [full, wide])


def _sum_into(out: Tensor, parts: Sequence[Tensor], *, add: bool) -> None:
    """Set out (S,) to parts[0] + parts[1] + ... (+ out), in that order in fp32. It may be one of the parts."""
    if len(parts) == 1 and not add:
        out.copy_(parts[0])
    elif len(parts) == 2 and not add and parts[0].dtype == out.dtype:
        torch.add(parts[0], parts[1], out=out)  # one rounding, as from an fp32 sum
    else:
        _sum_by_blocks(out, parts, add=add)


def _sum_by_blocks(out: Tensor, parts: Sequence[Tensor], *, add: bool) -> None:
    block = min(BLOCK, out.numel()) if out.device.type == "cpu" else out.numel()
    total = torch.empty(block, dtype=torch.float32, device=out.device)
    for start in range(0, out.numel(), block):
        stop = min(start + block, out.numel())
        piece = total[: stop - start].copy_(parts[0][start:stop])
        for part in parts[1:]:
            piece.add_(part[start:stop])
        if add:
            piece.add_(out[start:stop])
        out[start:stop] = piece


def _started(work: dist.Work | None) -> dist.Work:
    assert work is not None, "only members of the group communicate"
    return work
