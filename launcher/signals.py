"""Signals to the controller, as names in a queue that its loop looks into."""

from __future__ import annotations

import queue
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def caught(names: queue.SimpleQueue[str]) -> Iterator[None]:
    """SIGINT, SIGTERM, SIGUSR1 and SIGUSR2 go into `names`; a closed terminal is a SIGTERM, but under nohup.

    Main thread only.
    """
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
    kinds = {number: number.name for number in numbers}
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        kinds[signal.SIGHUP] = "SIGTERM"

    def put(number: int, _frame: FrameType | None) -> None:
        names.put(kinds[signal.Signals(number)])

    before = {number: signal.signal(number, put) for number in kinds}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
