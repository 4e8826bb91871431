"""How fast each rank goes, and which ones lag: from the steps that the journal has every few seconds. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from launcher.events import Progressed
from launcher.nodeset import expand_ranks

WINDOW = 13  # looks that are kept: with one every 5 s, a minute
ODD_SCORE = (
    4.0  # deviations from the median (by the median deviation) from which a rank is called a straggler
)
LEAST_SPREAD = (
    0.02  # share of the median below which no difference counts: clocks and heartbeats are that coarse
)


@dataclass(frozen=True)
class Tempo:
    """What was told of steps lately in one attempt, oldest first."""

    attempt: int = 0
    looks: tuple[tuple[float, dict[int, int]], ...] = ()  # (t, newest step of the ranks that had one)

    def step_s(self, rank: int) -> float | None:
        """Seconds a step over the window; None where fewer than two steps are known."""
        known = [(t, steps[rank]) for t, steps in self.looks if rank in steps]
        if len(known) < 2 or known[-1][1] <= known[0][1]:
            return None
        return (known[-1][0] - known[0][0]) / (known[-1][1] - known[0][1])


def told(past: Tempo, events: Sequence[Progressed]) -> Tempo:
    """With what the newest events of one attempt tell."""
    attempt = events[-1].attempt
    looks = past.looks if past.attempt == attempt else ()
    more = tuple((event.t, by_rank(event)) for event in events[-WINDOW:])
    return Tempo(attempt, (*looks, *more)[-WINDOW:])


def by_rank(event: Progressed) -> dict[int, int]:
    """{"0-2": 5} -> {0: 5, 1: 5, 2: 5}."""
    found: dict[int, int] = {}
    for text, step in event.steps.items():
        ranks = (int(text),) if text.isdecimal() else expand_ranks(text)
        found.update(dict.fromkeys(ranks, step))
    return found


def newest(events: Sequence[Progressed], ranks: int) -> dict[str, int]:
    """The newest step of each rank, as one event would tell it: from the last event back to where all are known."""
    found: dict[int, int] = {}
    for event in reversed(events):
        found = {**by_rank(event), **found}
        if len(found) >= ranks:
            break
    return {str(rank): step for rank, step in found.items()}


@dataclass(frozen=True)
class Straggler:
    """A rank that stands out: by how many deviations, and what it does differently."""

    rank: int
    score: float
    why: str


def stragglers(values: Mapping[int, float], unit: str) -> list[Straggler]:
    """Ranks whose value is far above the median of all, worst first: a score that a few odd ones cannot hide.

    Source: Iglewicz and Hoaglin (1993), modified z-score.
    """
    if len(values) < 3:
        return []
    middle = statistics.median(values.values())
    deviation = statistics.median(abs(value - middle) for value in values.values())
    spread = max(1.4826 * deviation, LEAST_SPREAD * abs(middle), 1e-12)
    found = [
        Straggler(rank, (value - middle) / spread, f"{value:.3g} {unit}, median {middle:.3g}")
        for rank, value in values.items()
        if (value - middle) / spread >= ODD_SCORE
    ]
    return sorted(found, key=lambda one: -one.score)


def behind(steps: Sequence[int]) -> list[int]:
    """How many steps each rank is behind the furthest; one that reports none is not behind."""
    furthest = max(steps, default=0)
    return [furthest - step if step else 0 for step in steps]
