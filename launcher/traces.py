"""Traces of several ranks as one, with clocks side by side, and what they come to. Pure.

A trace is in Chrome's format, as torch's profiler writes it: events with a begin (ts) and a length (dur) in
microseconds of its rank's own clock. Clocks are put side by side by the all-reduce of each step, which ends on all
ranks at about the same time: within the latency of the network.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

AGREE = "distperf.agree"  # distperf.trainer
PART = "distperf."  # distperf.measure.stopwatch
COMMUNICATION = "distperf.communication"

Event = dict[str, Any]
Span = tuple[float, float]  # from, to


@dataclass(frozen=True)
class Share:
    """What a rank did while it was traced, in seconds of a step. On devices: what the device did."""

    rank: int
    compute_s: float
    exposed_s: float  # communication that nothing was computed beside
    idle_s: float


def agreements(events: Iterable[Event]) -> list[float]:
    """When each step's all-reduce ended, by the rank's clock."""
    return sorted(e["ts"] + e["dur"] for e in events if e.get("name") == AGREE and _is_annotation(e))


def _is_annotation(event: Event) -> bool:
    """Of the host's: a device's timeline repeats them."""
    return event.get("ph") == "X" and event.get("cat") == "user_annotation"


def offset(reference: Sequence[float], own: Sequence[float]) -> float:
    """What to add to a rank's times for those of the reference; 0 where nothing tells."""
    pairs = list(zip(reference, own, strict=False))
    return statistics.median(a - b for a, b in pairs) if pairs else 0.0


def merged(traces: Mapping[int, Mapping[str, Any]], hosts: Mapping[int, str]) -> dict[str, Any]:
    """One trace in which each rank's processes stand under its name, in the first rank's time."""
    events: list[Event] = []
    reference: list[float] | None = None
    for rank in sorted(traces):
        own = traces[rank].get("traceEvents", [])
        ends = agreements(own)
        reference = ends if reference is None else reference
        events += _renamed(own, rank, f"rank {rank} on {hosts[rank]}", offset(reference, ends))
    return {"displayTimeUnit": "ms", "traceEvents": events}


def _renamed(events: Iterable[Event], rank: int, name: str, shift: float) -> Iterator[Event]:
    pids: dict[Any, int] = {}
    for event in events:
        if "pid" not in event:
            continue
        pid = pids.setdefault(event["pid"], rank * 1000 + len(pids))
        changed = {**event, "pid": pid}
        if "ts" in event:
            changed["ts"] = event["ts"] + shift
        if "id" in event:
            changed["id"] = f"{rank}.{event['id']}"
        if event.get("ph") == "M" and event.get("name") == "process_name":
            changed["args"] = {"name": f"{name}: {event.get('args', {}).get('name', '')}"}
        if event.get("ph") == "M" and event.get("name") == "process_sort_index":
            changed["args"] = {"sort_index": pid}
        yield changed


def share_of(rank: int, events: Sequence[Event]) -> Share | None:
    """What a rank did, a step; None where its trace holds no step."""
    steps = len(agreements(events))
    parts = [e for e in events if str(e.get("name", "")).startswith(PART) and _is_annotation(e)]
    if not steps or not parts:
        return None
    window = max(e["ts"] + e["dur"] for e in parts) - min(e["ts"] for e in parts)
    kernels = [e for e in events if e.get("cat") == "kernel" and e.get("ph") == "X"]
    compute, exposed = _of_device(kernels) if kernels else _of_parts(parts)
    idle = max(0.0, window - compute - exposed)
    return Share(rank, *(value / steps / 1e6 for value in (compute, exposed, idle)))


def _of_device(kernels: Sequence[Event]) -> Span:
    """Microseconds that a device computes, and that it only communicates."""
    sent = [e for e in kernels if "nccl" in str(e["name"]).lower()]
    busy = covered((e["ts"], e["ts"] + e["dur"]) for e in kernels if "nccl" not in str(e["name"]).lower())
    both = covered((e["ts"], e["ts"] + e["dur"]) for e in (*sent, *kernels))
    return _length(busy), _length(both) - _length(busy)


def _of_parts(parts: Sequence[Event]) -> Span:
    """The same of the host's parts, where time counts for the innermost one."""
    compute = exposed = 0.0
    open_parts: list[tuple[float, str]] = []  # (end, name)
    at = 0.0

    def count(until: float) -> None:
        nonlocal compute, exposed, at
        if open_parts and open_parts[-1][1] == COMMUNICATION:
            exposed += until - at
        elif open_parts:
            compute += until - at
        at = until

    for event in sorted(parts, key=lambda e: (e["ts"], -e["dur"])):
        if event["name"] == AGREE:
            continue
        while open_parts and open_parts[-1][0] <= event["ts"]:
            count(open_parts[-1][0])
            open_parts.pop()
        count(event["ts"])
        open_parts.append((event["ts"] + event["dur"], event["name"]))
    while open_parts:
        count(open_parts[-1][0])
        open_parts.pop()
    return compute, exposed


def covered(spans: Iterable[Span]) -> list[Span]:
    """The same time as spans that do not overlap, in order."""
    found: list[Span] = []
    for begin, end in sorted(spans):
        if found and begin <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((begin, end))
    return found


def _length(spans: Iterable[Span]) -> float:
    return sum(end - begin for begin, end in spans)


def summary(shares: Sequence[Share], hosts: Mapping[int, str]) -> list[str]:
    """A table, and the slowest rank."""
    if not shares:
        return ["the traces hold no whole step"]
    lines = [f"{'rank':>6}  {'compute':>10}  {'exposed comm.':>13}  {'idle':>10}   a step"]
    for one in shares:
        whole = (one.compute_s + one.exposed_s + one.idle_s) or 1.0
        lines.append(
            f"{one.rank:>6}  {_cell(one.compute_s, whole):>10}  {_cell(one.exposed_s, whole):>13}  "
            f"{_cell(one.idle_s, whole):>10}   {whole * 1000:.1f} ms on {hosts[one.rank]}"
        )
    slowest = max(shares, key=lambda one: one.compute_s)
    middle = statistics.median(one.compute_s for one in shares)
    more = (
        f", {slowest.compute_s / middle - 1:.0%} more than the median" if middle and len(shares) > 1 else ""
    )
    return [
        *lines,
        f"slowest: rank {slowest.rank}, {slowest.compute_s * 1000:.1f} ms of computing a step{more}",
    ]


def _cell(seconds: float, whole: float) -> str:
    return f"{seconds / whole:.1%}"
