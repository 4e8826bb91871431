"""SIGTERM or SIGUSR1 while training: a rank ends after the step at hand, with all others, and keeps what it learned."""

from __future__ import annotations

import signal
from types import FrameType


class StopRequest:
    """Whether this rank has been told to end. Calling it asks; `Trainer.step` carries the answer to all ranks.

    Until `listen`, SIGTERM ends the process at once, as it does any other: there is nothing to save yet.
    """

    def __init__(self) -> None:
        self._told = False

    def __call__(self) -> bool:
        """True once SIGTERM has come, on this rank."""
        return self._told

    def listen(self) -> None:
        """From here on SIGTERM is a request, and so is SIGUSR1, SLURM's warning. Main thread only."""
        for number in (signal.SIGTERM, signal.SIGUSR1):
            signal.signal(number, self._take)

    def _take(self, _number: int, _frame: FrameType | None) -> None:
        self._told = True
