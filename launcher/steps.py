"""How far ranks say they are, between heartbeats and what is made of them: a thousand nodes speak every second."""

from __future__ import annotations

from collections.abc import Mapping

from launcher.nodeset import fold_numbers


class Steps:
    """The newest step of each rank that has not been passed on yet: to the supervisor, and to the journal."""

    def __init__(self) -> None:
        self._heard: dict[int, int] = {}
        self._unkept: dict[int, int] = {}
        self._kept_t = 0.0

    def take(self, steps: Mapping[int, int]) -> None:
        """A heartbeat's."""
        self._heard.update(steps)
        self._unkept.update(steps)

    def take_metrics(self, rank: int, step: int) -> None:
        """A step that a line of metrics tells of, sooner than the next heartbeat."""
        self._unkept[rank] = max(step, self._unkept.get(rank, 0))

    def heard(self) -> dict[int, int]:
        """What came since the last call."""
        heard, self._heard = self._heard, {}
        return heard

    def unkept(self, now: float, after_s: float) -> dict[str, int] | None:
        """Ranks folded by step, for the journal; None within after_s of the last time, or where nothing is new."""
        if not self._unkept or now - self._kept_t < after_s:
            return None
        steps, self._unkept, self._kept_t = self._unkept, {}, now
        return fold_steps(steps)


def fold_steps(steps: Mapping[int, int]) -> dict[str, int]:
    """{0: 5, 1: 5, 2: 4} -> {"0-1": 5, "2": 4}: one entry for all ranks at the same step."""
    by_step: dict[int, list[int]] = {}
    for rank, step in steps.items():
        by_step.setdefault(step, []).append(rank)
    return {fold_numbers(ranks): step for step, ranks in by_step.items()}
