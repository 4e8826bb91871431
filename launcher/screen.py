"""Who shows a run while it goes: the seam between the controller and a terminal."""

from __future__ import annotations

from typing import Any, Protocol

from launcher.state import RunState


class Screen(Protocol):
    """Who shows the run while it goes (launcher.console)."""

    def log(self, host: str, rank: int, data: bytes) -> None:
        """Bytes that a rank wrote."""

    def metrics(self, line: dict[str, Any]) -> None:
        """A step's metrics."""

    def state(self, state: RunState) -> None:
        """The state after an event."""

    def note(self, text: str) -> None:
        """A line of the run's story."""

    def close(self) -> None:
        """Nothing more comes."""
