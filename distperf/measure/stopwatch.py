"""Where the time of a step goes on this rank: data, forward, backward, communication, optimizer, checkpoint.

Parts may lie within each other; time counts for the innermost one. So what a forward pass waits for other ranks is
`communication`, not `forward`, and the rest is a rank's own: a slow one is told from those that wait for it. What
happens inside an operator of torch's (the collectives of tensor-parallel layers) belongs to the part around it.

On the CPU a part costs two looks at a clock. On a device it costs two events on the current stream, which are read when
they have passed: nothing waits for the device, and what is counted is the time that computing stood still for.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from types import TracebackType
from typing import Protocol

import torch
from torch.autograd.profiler import record_function

OTHER = "other"  # of a step, what lies in no part
MAX_LAPS = 16  # of a device, that wait to be read


class Laps(Protocol):
    """Takes note of which part begins when."""

    def turn(self, part: str) -> None:
        """From here on time is this part's."""
        ...

    def lap(self) -> dict[str, float]:
        """Seconds of each part since the last call, as far as they are known."""
        ...


class ClockLaps:
    """On the clock of the host, where work is done when a call returns."""

    def __init__(self) -> None:
        self._part, self._since = OTHER, time.perf_counter()
        self._spent: dict[str, float] = {}

    def turn(self, part: str) -> None:
        """As `Laps.turn`."""
        now = time.perf_counter()
        self._spent[self._part] = self._spent.get(self._part, 0.0) + now - self._since
        self._part, self._since = part, now

    def lap(self) -> dict[str, float]:
        """As `Laps.lap`."""
        self.turn(self._part)
        spent, self._spent = self._spent, {}
        return spent


class StreamLaps:
    """On a device's stream: an event where a part begins. A lap is read once the device has passed its last event."""

    def __init__(self) -> None:
        self._marks: list[tuple[str, torch.cuda.Event]] = []
        self._laps: deque[list[tuple[str, torch.cuda.Event]]] = deque(maxlen=MAX_LAPS)
        self.turn(OTHER)

    def turn(self, part: str) -> None:
        """As `Laps.turn`."""
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # torch's
        event.record()
        self._marks.append((part, event))

    def lap(self) -> dict[str, float]:
        """As `Laps.lap`: of laps that the device is done with, which is mostly the one before."""
        part, _ = self._marks[-1]
        self.turn(part)
        self._laps.append(self._marks)
        self._marks = self._marks[-1:]
        spent: dict[str, float] = {}
        while self._laps and self._laps[0][-1][1].query():  # type: ignore[no-untyped-call]  # torch's
            marks = self._laps.popleft()
            for (name, begin), (_, end) in pairwise(marks):
                spent[name] = spent.get(name, 0.0) + begin.elapsed_time(end) / 1000
        return spent


class _Part:
    """A part of a step, as a context. Used from whatever thread the step's work is in just then, one at a time."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> None:
        if _traced is not None:
            _traced.append(record_function(f"distperf.{self._name}"))
            _traced[-1].__enter__()  # type: ignore[no-untyped-call]  # torch's
        if _laps is not None:
            _inside.append(self._name)
            _laps.turn(self._name)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        if _laps is not None:
            _inside.pop()
            _laps.turn(_inside[-1])
        if _traced:
            _traced.pop().__exit__(kind, error, where)


_laps: Laps | None = None  # of this process, which is one rank
_inside: list[str] = []  # parts that have begun, the innermost last
_traced: list[record_function] | None = None  # the same, while a profiler runs

DATA, FORWARD, BACKWARD = _Part("data"), _Part("forward"), _Part("backward")
COMMUNICATION, OPTIMIZER, CHECKPOINT = _Part("communication"), _Part("optimizer"), _Part("checkpoint")
EVALUATION = _Part("evaluation")


@contextmanager
def running(device: torch.device) -> Iterator[None]:
    """Measure while this is open; outside of it parts cost nothing and count nothing."""
    global _laps
    _inside[:] = [OTHER]
    _laps = StreamLaps() if device.type == "cuda" else ClockLaps()
    try:
        yield
    finally:
        _laps = None


def trace(on: bool) -> None:
    """Whether parts that begin from here on stand in the profiler's trace. Between steps, where no part is open."""
    global _traced
    _traced = [] if on else None


def lap() -> dict[str, float]:
    """Seconds of each part since the last call; empty where nothing is measured or known yet."""
    return {} if _laps is None else _laps.lap()
