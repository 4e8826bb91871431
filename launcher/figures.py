"""What ranks and nodes do, in numbers: the newest of each, all of them folded, and who stands out. Pure.

Parts of a step are seconds a step, as a rank's own clock has them (distperf.measure.stopwatch); figures of nodes are
those of launcher.agent.figures and launcher.agent.nvidia.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from distperf import contract
from launcher import tempo
from launcher.state import Rank
from launcher.tempo import Straggler

PARTS = tuple(contract.PARTS)
TOGETHER = frozenset({"communication", "checkpoint", "evaluation"})  # in these, ranks wait for each other
NODE = ("cpu", "load", "memory_bytes", "received_bytes_per_s", "sent_bytes_per_s", "read_bytes_per_s",
        "written_bytes_per_s")  # fmt: skip
DEVICE = (
    "busy",
    "memory_bytes",
    "celsius",
    "watts",
    "nvlink_sent_bytes_per_s",
    "nvlink_received_bytes_per_s",
)
# Bits of NVML's clock event reasons that mean that a device is slower than its settings. Source: nvml.h. That power
# is capped (0x4) is how a busy device lives.
THROTTLES = {0x8: "hardware slowdown", 0x20: "heat", 0x40: "heat", 0x80: "power brake"}

Numbers = Mapping[str, Any]


@dataclass(frozen=True)
class Figures:
    """The newest of each rank and host that has told any in this attempt."""

    attempt: int = 0
    ranks: Mapping[int, Numbers] = field(default_factory=dict)
    nodes: Mapping[str, Numbers] = field(default_factory=dict)

    def own_s(self) -> dict[int, float]:
        """What each rank takes for its own share of a step, without what it waits for others."""
        return {rank: _sum(parts, set(PARTS) - TOGETHER) for rank, parts in self.ranks.items()}

    def part_s(self, part: str) -> dict[int, float]:
        """Seconds a step of one part, of ranks that have it."""
        return {rank: parts[part] for rank, parts in self.ranks.items() if part in parts}

    def of_devices(self, name: str) -> dict[str, float]:
        """A figure of each device, by host and index."""
        found = {}
        for host, node in self.nodes.items():
            devices = node.get("devices", ())
            found.update({f"{host} {at}": row[name] for at, row in enumerate(devices) if name in row})
        return found

    def of_nodes(self, name: str) -> dict[str, float]:
        """A figure of each node."""
        return {host: node[name] for host, node in self.nodes.items() if name in node}

    def device_of(self, rank: Rank, ranks_there: int) -> Numbers:
        """A rank's device, where its node tells of as many devices as it has ranks."""
        devices: Sequence[Numbers] = self.nodes.get(rank.host, {}).get("devices", ())
        return devices[rank.local_rank] if len(devices) == ranks_there > rank.local_rank else {}


def _sum(parts: Numbers, names: set[str] | frozenset[str]) -> float:
    return float(sum(value for name, value in parts.items() if name in names))


def from_json(value: Any) -> Figures:
    """What figures.json holds; nothing where another version wrote it."""
    try:
        ranks = {int(rank): dict(parts) for rank, parts in value["ranks"].items()}
        return Figures(int(value["attempt"]), ranks, dict(value["nodes"]))
    except (KeyError, TypeError, ValueError, AttributeError):
        return Figures()


def as_json(figures: Figures) -> dict[str, Any]:
    """Inverse of `from_json`."""
    ranks = {str(rank): parts for rank, parts in figures.ranks.items()}
    return {"schema": 1, "attempt": figures.attempt, "ranks": ranks, "nodes": figures.nodes}


def folded(figures: Figures, ranks: Sequence[Rank]) -> dict[str, Any]:
    """Of each figure NAME the median, NAME_least, NAME_most, and NAME_at: the rank, host or device with the most."""
    found: dict[str, Any] = {}
    for part in PARTS:
        found.update(_fold(f"{part}_s", figures.part_s(part)))
    found.update(_fold("own_s", figures.own_s()))
    for name in NODE:
        found.update(_fold(f"node_{name}", figures.of_nodes(name)))
    for name in DEVICE:
        found.update(_fold(f"device_{name}", figures.of_devices(name)))
    spread = imbalance(figures, ranks)
    return found if spread is None else {**found, "stage_imbalance": spread}


def _fold(name: str, values: Mapping[Any, float]) -> dict[str, Any]:
    if not values:
        return {}
    most = max(values, key=lambda key: values[key])
    return {
        name: statistics.median(values.values()),
        f"{name}_least": min(values.values()),
        f"{name}_most": values[most],
        f"{name}_at": most,
    }


def stragglers(figures: Figures, ranks: Sequence[Rank]) -> list[Straggler]:
    """Ranks whose own time stands out among those that do the same: of their pipeline stage. Worst first."""
    by_stage: dict[int, dict[int, float]] = {}
    for rank, seconds in figures.own_s().items():
        if rank < len(ranks):
            by_stage.setdefault(stage_of(ranks[rank]), {})[rank] = seconds
    found = [one for group in by_stage.values() for one in tempo.stragglers(group, "s of its own a step")]
    return sorted(found, key=lambda one: -one.score)


def stage_of(rank: Rank) -> int:
    """A rank's place along the pipeline."""
    return rank.coordinates.get("pp", 0)


def stages_s(figures: Figures, ranks: Sequence[Rank]) -> dict[int, float]:
    """Median seconds of passes, forward and backward, of each place along the pipeline; empty without one."""
    found: dict[int, list[float]] = {}
    for rank, parts in figures.ranks.items():
        if rank < len(ranks):
            found.setdefault(stage_of(ranks[rank]), []).append(_sum(parts, {"forward", "backward"}))
    return {stage: statistics.median(found[stage]) for stage in sorted(found)} if len(found) > 1 else {}


def imbalance(figures: Figures, ranks: Sequence[Rank]) -> float | None:
    """By which share the slowest stage's passes take longer than the mean; None without a pipeline."""
    seconds = list(stages_s(figures, ranks).values())
    mean = sum(seconds) / len(seconds) if seconds else 0.0
    return max(seconds) / mean - 1 if mean > 0 else None


def data_wait(figures: Figures) -> tuple[float, int] | None:
    """The largest share of a step that a rank waits for data, and which rank does."""
    shares = {
        rank: parts.get("data", 0.0) / whole
        for rank, parts in figures.ranks.items()
        if (whole := _sum(parts, frozenset(PARTS))) > 0
    }
    worst = max(shares, key=lambda rank: shares[rank], default=None)
    return None if worst is None else (shares[worst], worst)


def ailing(figures: Figures) -> Iterator[str]:
    """Devices that are slowed down, or whose memory has lost bits."""
    for device, bits in figures.of_devices("throttled").items():
        reasons = sorted({text for bit, text in THROTTLES.items() if int(bits) & bit})
        if reasons:
            yield f"device {device} is slowed down by {', '.join(reasons)}"
    for device, errors in figures.of_devices("ecc_errors").items():
        if errors:
            yield f"device {device} has {errors:.0f} uncorrected memory errors"
