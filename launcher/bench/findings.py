"""What ranks measured: as the planner takes it, and host by host. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from distperf.recipe.planner.rates import HOSTS, Measure

LINK = "link"
EMPTY_BYTES = 8  # of the message by which a link's latency is measured
# What each rank does by itself, told as a rate: hosts are compared by all but the last.
OF_A_HOST = ("matmul", "layer", "copy", "update", "read", "write", "offload")
RATES = (*OF_A_HOST, "loss")


@dataclass(frozen=True)
class Finding:
    """One number (distperf.recipe.planner.rates says of what). peer: the host at a link's other end."""

    host: str
    rank: int
    what: str
    where: str
    amount: float
    value: float
    peer: str | None = None
    direct: bool = True  # a drive was used past the page cache


def findings(told: Mapping[int, Sequence[Mapping[str, Any]]], host_of: Sequence[str]) -> list[Finding]:
    """Of the events of all ranks; of what a rank measured more than once, the best. host_of: by rank."""
    every = [
        Finding(
            host_of[rank],
            rank,
            one["what"],
            one["where"],
            float(one["amount"]),
            float(one["value"]),
            host_of[one["peer"]] if "peer" in one else None,
            bool(one.get("direct", True)),
        )
        for rank, events in sorted(told.items())
        for event in events
        if event["event"] == "bench"
        for one in event["found"]
    ]
    best: dict[tuple[Any, ...], Finding] = {}
    for one in every:
        thing = (one.rank, one.what, one.where, one.amount, one.peer)
        better = max if one.what in RATES else min
        best[thing] = better(best.get(thing, one), one, key=lambda each: each.value)
    return list(best.values())


def measures(found: Iterable[Finding]) -> tuple[Measure, ...]:
    """For the planner: of all ranks and links the slowest, of sizes those that all have."""
    by_thing: dict[tuple[str, str], dict[float, list[float]]] = {}
    for one in found:
        by_thing.setdefault((one.what, one.where), {}).setdefault(one.amount, []).append(one.value)
    made = []
    for (what, where), values in sorted(by_thing.items()):
        slowest = min if what in RATES else max
        everywhere = max(map(len, values.values()))
        sizes = sorted(size for size, all_ in values.items() if len(all_) == everywhere)
        made.append(Measure(what, where, tuple((size, slowest(values[size])) for size in sizes)))
    return tuple(made)


def by_host(found: Sequence[Finding]) -> dict[tuple[str, str], dict[str, float]]:
    """(what, where) -> host -> the median of its ranks, at the largest size that all have."""
    table: dict[tuple[str, str], dict[str, float]] = {}
    for measure in measures(one for one in found if one.what in OF_A_HOST):
        size = measure.points[-1][0]
        mine: dict[str, list[float]] = {}
        for one in found:
            if (one.what, one.where, one.amount) == (measure.what, measure.where, size):
                mine.setdefault(one.host, []).append(one.value)
        table[measure.what, measure.where] = {host: median(values) for host, values in mine.items()}
    return table


def links(found: Iterable[Finding], *, empty: bool) -> dict[tuple[str, str], float]:
    """Pair of hosts -> the median seconds of a large or an empty message between ranks of theirs."""
    pairs: dict[tuple[str, str], list[float]] = {}
    for one in found:
        if one.what == LINK and one.where == HOSTS and one.peer and (one.amount == EMPTY_BYTES) == empty:
            pairs.setdefault((one.host, one.peer), []).append(one.value)
    return {pair: median(values) for pair, values in pairs.items()}
