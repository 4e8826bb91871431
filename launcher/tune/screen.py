"""What a trial shows while it runs: the bar of all trials."""

from __future__ import annotations

from typing import Any

from launcher.bar import Bar
from launcher.state import RunState


class TrialScreen:
    """A Screen (launcher.screen) of trial `number` of `count`."""

    def __init__(self, bar: Bar, number: int, count: int, text: str) -> None:
        self._bar, self._number, self._count, self._text = bar, number, count, text
        self._speed = ""

    def log(self, host: str, rank: int, data: bytes) -> None:
        """See Screen: it is in the trial's run folder."""

    def metrics(self, line: dict[str, Any]) -> None:
        """See Screen."""
        self._speed = f", {line['tokens_per_s']:,.0f} tokens/s"

    def state(self, state: RunState) -> None:
        """See Screen."""
        share = state.step / state.steps if state.steps else 0.0
        where = f"step {state.step}{self._speed}" if state.step else state.state
        text = f"trial {self._number} of {self._count}: {self._text}: {where}"
        self._bar.show((self._number - 1 + share) / self._count, text)

    def note(self, text: str) -> None:
        """See Screen: its outcome says it."""

    def close(self) -> None:
        """See Screen: the bar is for all trials."""
