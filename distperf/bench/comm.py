"""What goes between ranks: collectives by size, inside hosts and over all of them, and every link by itself.

`reduce` and `gather` are the ones that ZeRO uses (distperf.parallel.collectives); the others are the backend's own.

Legend: N ranks of a group, P elements of a buffer, B bytes that a rank sends.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from distperf.bench.rounds import rounds
from distperf.bench.timing import once, typical_together
from distperf.parallel.collectives import Peers, start_gather, start_reduce
from distperf.parallel.scratch import Scratch
from distperf.process_group import Ranks, exchange

Found = list[dict[str, Any]]
Case = Callable[[], Found]

SIZES = (1 << 16, 1 << 20, 12 << 20)  # bytes of a buffer; the largest is a bucket of ZeRO's
DEVICE_SIZES = (*SIZES, 1 << 26)
LINK_BYTES = 4 << 20
LINK_TIMES = 5
LATENCY_TIMES = 20
MOST_ROUNDS = 15  # of pairs of hosts: each is then seen from fifteen others
ENOUGH_S = 1.0  # a buffer that takes longer is the last that is tried


@dataclass(frozen=True)
class Scope:
    """Ranks that communicate: those of one host ("host"), or all of them ("hosts")."""

    where: str
    group: dist.ProcessGroup | None  # None: all ranks
    rank: int
    size: int


def cases(ranks: Ranks, device: torch.device) -> Iterator[Case]:
    """Each measures one thing. All ranks take part in all of them, in the same order."""
    hosts = hosts_of(ranks)
    scopes = list(_scopes(ranks, hosts))
    sizes = SIZES if device.type == "cpu" else DEVICE_SIZES
    for scope in scopes:
        for what in COLLECTIVES:
            yield partial(_collective, what, scope, sizes, device)
    for pairs in rounds(max(map(len, hosts)), MOST_ROUNDS):
        yield partial(_link, "host", _partner_inside(ranks, hosts, pairs), device)
    for pairs in rounds(len(hosts), MOST_ROUNDS):
        yield partial(_link, "hosts", _partner_outside(ranks, hosts, pairs), device)


def hosts_of(ranks: Ranks) -> list[list[int]]:
    """The ranks of each host. Cost: as `exchange`."""
    found: dict[int, list[int]] = {}
    for rank, node in enumerate(exchange(ranks.node_rank)):
        found.setdefault(node, []).append(rank)
    return [found[node] for node in sorted(found)]


def _scopes(ranks: Ranks, hosts: list[list[int]]) -> Iterator[Scope]:
    groups = [dist.new_group(members) for members in hosts]
    mine = next(at for at, members in enumerate(hosts) if ranks.rank in members)
    if max(map(len, hosts)) > 1:
        yield Scope("host", groups[mine], hosts[mine].index(ranks.rank), len(hosts[mine]))
    if len(hosts) > 1:
        yield Scope("hosts", None, ranks.rank, ranks.world_size)


# Collectives: each makes a call that can be made again and again, and tells what part of the buffer a rank sends.


def _reduce(full: Tensor, scope: Scope, device: torch.device) -> Callable[[], object]:
    peers = Peers.of(scope.group or dist.group.WORLD, device)
    out, scratch = torch.empty_like(peers.shard(full)), Scratch(device, full.numel())
    return lambda: start_reduce(full, out, peers, scratch).wait()


def _gather(full: Tensor, scope: Scope, device: torch.device) -> Callable[[], object]:
    peers = Peers.of(scope.group or dist.group.WORLD, device)
    return lambda: start_gather(full, peers).wait()


def _all_reduce(full: Tensor, scope: Scope, device: torch.device) -> Callable[[], object]:
    return lambda: dist.all_reduce(full, group=scope.group)


def _all_gather(full: Tensor, scope: Scope, device: torch.device) -> Callable[[], object]:
    own = full.view(scope.size, -1)[scope.rank].clone()
    return lambda: dist.all_gather_into_tensor(full, own, group=scope.group)


def _reduce_scatter(full: Tensor, scope: Scope, device: torch.device) -> Callable[[], object]:
    own = torch.empty_like(full.view(scope.size, -1)[scope.rank])
    return lambda: dist.reduce_scatter_tensor(own, full, group=scope.group)


def _all_to_all(full: Tensor, scope: Scope, device: torch.device) -> Callable[[], object]:
    came = torch.empty_like(full)
    return lambda: dist.all_to_all_single(came, full, group=scope.group)


COLLECTIVES = {
    "reduce": _reduce,
    "gather": _gather,
    "all_reduce": _all_reduce,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "all_to_all": _all_to_all,
}


def _collective(what: str, scope: Scope, sizes: tuple[int, ...], device: torch.device) -> Found:
    """Seconds of the slowest rank, told by the first one of each group.

    Cost: B = (N - 1) / N * P * 4 a call, twice that for an all-reduce.
    """
    found: Found = []
    for size in sizes if scope.size > 1 else ():
        full = torch.zeros(size // 4 // scope.size * scope.size, device=device)
        seconds = typical_together(COLLECTIVES[what](full, scope, device), device, scope.group)
        sent = (2 if what == "all_reduce" else 1) * (scope.size - 1) / scope.size * 4 * full.numel()
        found.append(
            {"what": what, "where": scope.where, "amount": sent, "value": seconds, "ranks": scope.size}
        )
        if seconds > ENOUGH_S:
            break
    return found if scope.rank == 0 else []


# Links: pairs exchange, all pairs of a round at once.


def _partner_inside(ranks: Ranks, hosts: list[list[int]], pairs: dict[int, int]) -> int | None:
    own = hosts[ranks.node_rank]
    other = pairs.get(ranks.local_rank)
    return own[other] if other is not None and other < len(own) else None


def _partner_outside(ranks: Ranks, hosts: list[list[int]], pairs: dict[int, int]) -> int | None:
    """The rank with the same place on the other host: all of a host's ranks send at once, as they do in training."""
    other = pairs.get(ranks.node_rank)
    place = ranks.local_rank
    return hosts[other][place] if other is not None and place < len(hosts[other]) else None


def _link(where: str, partner: int | None, device: torch.device) -> Found:
    """Both ways at once, told by the lower rank: seconds of a large message, and of an empty one.

    Cost: B = 4 MiB and 8 bytes, some times; a barrier.
    """
    found: Found = []
    if partner is not None:
        seconds = {size: _exchanged(partner, size, times, device)
                   for size, times in ((8, LATENCY_TIMES), (LINK_BYTES, LINK_TIMES))}  # fmt: skip
        if dist.get_rank() < partner:
            found = [{"what": "link", "where": where, "amount": size, "value": value, "peer": partner}
                     for size, value in seconds.items()]  # fmt: skip
    dist.barrier()
    return found


def _exchanged(partner: int, size: int, times: int, device: torch.device) -> float:
    out, into = (torch.zeros(size, dtype=torch.uint8, device=device) for _ in range(2))

    def both() -> None:
        operations = [dist.P2POp(dist.irecv, into, partner), dist.P2POp(dist.isend, out, partner)]
        for work in dist.batch_isend_irecv(operations):
            work.wait()

    once(both, device)
    return statistics.median(once(both, device) for _ in range(times))
