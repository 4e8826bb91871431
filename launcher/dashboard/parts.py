"""Figures in a line each: where a step's time goes, what a node and a device do. Pure; text that is safe to show."""

from __future__ import annotations

import statistics
from collections import Counter

from launcher import figures, words
from launcher.figures import PARTS, Figures, Numbers
from launcher.follow import Seen
from launcher.state import Rank

LEAST_SHARE = 0.005  # of a step; below it a part is not worth a word


def split(parts: Numbers) -> str:
    """Parts of a step with their shares, in order."""
    whole = sum(float(parts.get(name, 0.0)) for name in PARTS)
    if not whole:
        return ""
    shown = [(name, float(parts.get(name, 0.0))) for name in PARTS]
    return "  ".join(
        f"{name} {seconds_of(value)} {value / whole:.0%}"
        for name, value in shown
        if value / whole >= LEAST_SHARE
    )


def seconds_of(value: float) -> str:
    """`4.2 s`, `12.3 ms`."""
    return f"{value:.2f} s" if value >= 1 else f"{value * 1000:.3g} ms"


def middle(found: Figures) -> dict[str, float]:
    """Each part's median over ranks."""
    seconds = {part: found.part_s(part) for part in PARTS}
    return {part: statistics.median(known.values()) for part, known in seconds.items() if known}


def stages(seen: Seen) -> str:
    """How evenly the work is divided along the pipeline; empty without one."""
    seconds = figures.stages_s(seen.figures, seen.state.ranks)
    spread = figures.imbalance(seen.figures, seen.state.ranks)
    if not seconds or spread is None:
        return ""
    slowest = max(seconds, key=lambda stage: seconds[stage])
    shown = "  ".join(seconds_of(value) for value in list(seconds.values())[:8])
    more = "  ..." if len(seconds) > 8 else ""
    return f"{shown}{more}   place {slowest} is {spread:.0%} above the mean"


def node(found: Numbers) -> str:
    """What a node does."""
    parts = []
    if "cpu" in found:
        parts.append(f"CPU {found['cpu']:.0%}")
    if "load" in found:
        parts.append(f"load {found['load']:.1f}")
    if "memory_bytes" in found:
        parts.append(
            f"memory {words.size(found['memory_bytes'])} of {words.size(found['memory_total_bytes'])}"
        )
    return "  ".join(parts)


def traffic(found: Numbers) -> str:
    """What goes through a node's network cards and drives."""
    names = [name for name in ("received", "sent", "read", "written") if f"{name}_bytes_per_s" in found]
    return "  ".join(f"{name} {words.size(found[f'{name}_bytes_per_s'])}/s" for name in names)


def device(found: Numbers) -> str:
    """What a device does."""
    parts = [f"{found['busy']:.0%} busy"] if "busy" in found else []
    if "memory_bytes" in found:
        parts.append(f"memory {words.size(found['memory_bytes'])}")
    parts += [
        f"{found[name]:.0f} {unit}" for name, unit in (("celsius", "C"), ("watts", "W")) if name in found
    ]
    if "nvlink_sent_bytes_per_s" in found:
        sent, received = found["nvlink_sent_bytes_per_s"], found["nvlink_received_bytes_per_s"]
        parts.append(f"NVLink {words.size(sent)}/s out, {words.size(received)}/s in")
    reasons = {text for bit, text in figures.THROTTLES.items() if int(found.get("throttled", 0)) & bit}
    parts += [f"slowed down by {', '.join(sorted(reasons))}"] if reasons else []
    errors = found.get("ecc_errors", 0)
    parts += [f"{errors:.0f} uncorrected memory errors"] if errors else []
    return "  ".join(parts)


def device_of(seen: Seen, rank: Rank) -> str:
    """What a rank's device does, where it is known which is its."""
    there = Counter(one.host for one in seen.state.ranks)
    return device(seen.figures.device_of(rank, there[rank.host]))
