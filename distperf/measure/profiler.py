"""Traces of a few steps of a running rank, by torch's profiler, when they are asked for.

All ranks that are asked begin with the same step: the step's all-reduce counts those that have heard of it. A trace
holds the parts of steps (distperf.measure.stopwatch) and, of each step, the all-reduce that ends on all ranks at about
the same time: by that their clocks are put side by side (launcher.traces).
"""

from __future__ import annotations

import os

import torch
from torch.profiler import ProfilerActivity, profile

from distperf.contract import STACK_FILE_ENV, Reporter
from distperf.measure import stopwatch
from distperf.requests import ProfileWanted, Requests


class StepProfiler:
    """Looks after each step whether to begin, and whether it is enough."""

    def __init__(self, requests: Requests, reporter: Reporter, device: torch.device) -> None:
        self._requests, self._reporter = requests, reporter
        self._activities = [ProfilerActivity.CPU]
        if device.type == "cuda":
            self._activities.append(ProfilerActivity.CUDA)
        self._wanted: ProfileWanted | None = None
        self._running: profile | None = None
        self._left = 0

    def waits(self) -> int:
        """1 where a trace is asked of this rank and has not begun."""
        self._wanted = self._wanted or self._requests.take_profile()
        return int(self._wanted is not None and self._running is None)

    def after_step(self, waiting: int) -> None:
        """Begin, go on or end; `waiting`: how many ranks waited for a trace in this step."""
        if self._running is not None:
            self._left -= 1
            if not self._left:
                self._end(self._running)
        elif self._wanted is not None and waiting >= self._wanted.ranks:
            self._left = self._wanted.steps
            self._running = profile(activities=self._activities)
            self._running.start()
            stopwatch.trace(True)
            stopwatch.lap()  # what it took to begin is no rank's own time

    def _end(self, running: profile) -> None:
        assert self._wanted is not None
        stopwatch.trace(False)
        running.stop()
        path = f"{os.environ[STACK_FILE_ENV]}.{self._wanted.id}.json.gz"
        running.export_chrome_trace(path)
        self._reporter.send("trace", id=self._wanted.id, path=path)
        self._wanted, self._running = None, None
        stopwatch.lap()  # nor what it took to end
