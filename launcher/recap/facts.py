"""Everything that a report tells, gathered from a run's folder."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from launcher.follow import Follower, Seen
from launcher.journal import read_lines
from launcher.recap.goodput import Goodput, StepTimes, goodput
from launcher.rundir import RunDir
from launcher.series import Line


@dataclass(frozen=True)
class Facts:
    """A run, looked at once. version: of the distperf that led it. first: its first line of metrics."""

    seen: Seen
    version: str
    first: Line
    goodput: Goodput
    recipe: str
    usage: tuple[Line, ...] = ()  # figures.jsonl: ranks and nodes over time, folded


def gather(run: RunDir) -> Facts:
    """Read the folder. Metrics are read whole, for the sums. Raises RunFolderError."""
    follower = Follower(run)
    follower.news()
    seen = follower.seen()
    created = next(read_lines(run.events), {})
    times = StepTimes(_sum(run.metrics), _sum(run.superseded_metrics))
    return Facts(
        seen, str(created.get("version", "")), next(read_lines(run.metrics), {}),
        goodput(seen.chronicle.tries, times, seen.now_t), _read(run.recipe), tuple(read_lines(run.usage)),
    )  # fmt: skip


def _sum(path: Path) -> float | None:
    """Seconds of all steps of a file of metrics; None where they do not say."""
    total, found = 0.0, False
    for step_s in _step_seconds(path):
        total, found = total + step_s, True
    return total if found else None


def _step_seconds(path: Path) -> Iterator[float]:
    for line in read_lines(path):
        step_s = line.get("step_s")
        if isinstance(step_s, (int, float)) and not isinstance(step_s, bool):
            yield float(step_s)


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace")
    except OSError:  # a run that never got so far
        return ""


def spec_lines(spec: Line) -> str:
    """runspec.json as people read it."""
    return json.dumps(spec, indent=1, sort_keys=True) if spec else ""
