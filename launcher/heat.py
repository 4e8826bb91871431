"""How ranks differ: a number of each by several measures, how hot that is, and which ranks stand out. Pure."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from launcher import figures, tempo, words
from launcher.follow import Seen
from launcher.tempo import Straggler

ALWAYS = ("step time", "own time", "behind", "memory")
METRICS = (*ALWAYS, "CPU", "device use", "device heat")
HEATS = 8
_DEVICE = {"device use": "busy", "device heat": "celsius"}
_ABSOLUTE = {"CPU": (0.0, 1.0), "device use": (0.0, 1.0), "device heat": (40.0, 95.0)}


def next_metric(seen: Seen, metric: str) -> str:
    """The one that follows, without those that nothing is known of."""
    at = METRICS.index(metric)
    order = (*METRICS[at + 1 :], *METRICS[: at + 1])
    return next(name for name in order if name in ALWAYS or values(seen, name))


def values(seen: Seen, metric: str) -> dict[int, float]:
    """The metric of every rank that has one."""
    ranks = seen.state.ranks
    if metric == "behind":
        late = tempo.behind([rank.step for rank in ranks])
        return {rank.rank: float(steps) for rank, steps in zip(ranks, late, strict=True) if rank.step}
    if metric == "memory":
        return {rank.rank: float(sum(rank.memory.values())) for rank in ranks if rank.memory}
    if metric == "own time":
        return seen.figures.own_s()
    if metric == "CPU":
        cpu = seen.figures.of_nodes("cpu")
        return {rank.rank: cpu[rank.host] for rank in ranks if rank.host in cpu}
    if metric in _DEVICE:
        return _of_devices(seen, _DEVICE[metric])
    found = ((rank.rank, seen.tempo.step_s(rank.rank)) for rank in ranks)
    return {rank: step_s for rank, step_s in found if step_s is not None}


def _of_devices(seen: Seen, name: str) -> dict[int, float]:
    there = Counter(rank.host for rank in seen.state.ranks)
    rows = ((rank.rank, seen.figures.device_of(rank, there[rank.host])) for rank in seen.state.ranks)
    return {rank: row[name] for rank, row in rows if name in row}


@dataclass(frozen=True)
class Scale:
    """Values to heat: `cool` and below is 0, `hot` and above the highest."""

    cool: float
    hot: float

    def level(self, value: float) -> int:
        """0 to HEATS - 1."""
        share = (value - self.cool) / (self.hot - self.cool) if self.hot > self.cool else 0.0
        return min(HEATS - 1, max(0, int(share * HEATS)))


def scale(metric: str, found: Mapping[int, float]) -> Scale:
    """Equal ranks are cool, whatever their value: heat begins above the median; shares and degrees are absolute."""
    if not found:
        return Scale(0.0, 0.0)
    if metric in _ABSOLUTE:
        return Scale(*_ABSOLUTE[metric])
    middle, high = statistics.median(found.values()), max(found.values())
    if metric == "behind":
        return Scale(0.0, max(8.0, high))
    room = 0.1 if metric == "memory" else 0.5
    return Scale(middle, max(middle * (1 + room), high))


def by_metric(metric: str) -> Callable[[float], str]:
    """How a value of the metric is written."""
    return {
        "behind": lambda v: f"{v:.0f} steps",
        "memory": words.size,
        "CPU": lambda v: f"{v:.0%}",
        "device use": lambda v: f"{v:.0%}",
        "device heat": lambda v: f"{v:.0f} C",
    }.get(metric, lambda v: f"{v:.3g} s")


def odd_ranks(seen: Seen) -> list[Straggler]:
    """Ranks that stand out by any measure, worst first, each by what it does worst.

    Own time comes first: where it names ranks, the others wait for them, and step times say nothing more.
    """
    found = figures.stragglers(seen.figures, seen.state.ranks)
    for metric, unit in (("step time", "s a step"), ("behind", "steps behind")):
        found += sorted(tempo.stragglers(values(seen, metric), unit), key=lambda one: -one.score)
    first: dict[int, Straggler] = {}
    for one in found:
        first.setdefault(one.rank, one)
    return list(first.values())
