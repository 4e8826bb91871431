"""A run's folder, read as it grows: everything that the dashboard, the sinks and the report show comes from here."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from launcher import figures
from launcher.chronicle import Chronicle
from launcher.events import AttemptBegan, Event, StacksTaken
from launcher.figures import Figures
from launcher.journal import Story
from launcher.rundir import RunDir
from launcher.series import Line, Series
from launcher.state import RunState
from launcher.tempo import Tempo
from launcher.view import controller_lives, public_state


@dataclass(frozen=True)
class Taken:
    """A look at what a rank was doing (launcher.stacks), and when it came."""

    t: float
    look: dict[str, Any]


@dataclass(frozen=True)
class Seen:
    """A run as it was at one look. now_t: seconds since it was created, until its end."""

    dir: str
    name: str  # state, as users know it: RunState's, or "lost"
    state: RunState
    chronicle: Chronicle
    points: tuple[Line, ...]  # of the whole run, thinned; the newest one is exact
    recent: tuple[Line, ...]  # the newest steps, each
    tempo: Tempo
    now_t: float
    spec: dict[str, Any]  # runspec.json
    looks: Mapping[int, Taken] = field(default_factory=dict)  # newest of each rank of this attempt
    figures: Figures = field(default_factory=Figures)  # of this attempt
    plan: dict[str, Any] = field(default_factory=dict)  # plan.json; empty where nothing was planned

    @property
    def last(self) -> Line:
        """The newest line of metrics; empty before the first."""
        return self.recent[-1] if self.recent else {}

    @property
    def step(self) -> int:
        """The newest finished step: metrics come sooner than the journal."""
        newest = self.last.get("step", 0) if self.last.get("attempt") == self.state.attempt else 0
        return max(self.state.step, int(newest)) or int(self.last.get("step", 0))

    @property
    def over(self) -> bool:
        """Nothing will change any more."""
        return self.state.over or self.name == "lost"


class Follower:
    """Reads on by offset, never anew. Raises RunFolderError where there is no run."""

    def __init__(self, run: RunDir) -> None:
        self.run = run
        self.story = Story(run)
        self.series = Series(run.metrics)
        self._looks: dict[int, Taken] = {}
        self._told: tuple[int, dict[str, Any], dict[str, Any]] = (0, {}, {})  # attempt, runspec, plan
        self._figures: tuple[float, Figures] = (0.0, Figures())
        self._points: tuple[Line, ...] = ()
        self._counted = -1

    def news(self) -> tuple[list[Event], list[Line]]:
        """Events and lines of metrics that have come since the last call."""
        happened = []
        for event in self.story.news():
            happened.append(event)
            if isinstance(event, StacksTaken) and event.attempt == self.story.state.attempt:
                taken = {int(rank): Taken(event.t, look) for rank, look in event.looks.items()}
                self._looks = {**self._looks, **taken}
            elif isinstance(event, AttemptBegan):
                self._looks = {}
        return happened, self.series.new()

    def seen(self) -> Seen:
        """The run as of the last call of `news`."""
        state, series = self.story.state, self.series
        alive = state.over or controller_lives(self.run, state)
        last = series.last.get("step", -1)
        if last != self._counted:
            ends = bool(series.points) and series.points[-1]["step"] == last
            self._counted, self._points = (
                last,
                (*series.points, *(() if ends or not series.recent else (series.last,))),
            )
        if self._told[0] != state.attempt:  # both are written anew when an attempt is placed anew
            self._told = state.attempt, _read(self.run.runspec), _read(self.run.plan)
        return Seen(
            str(self.run.path), public_state(state, alive), state, self.story.chronicle, self._points,
            tuple(series.recent), self.story.tempo, self._now_t(state, alive), self._told[1], self._looks,
            self._read_figures(state.attempt), self._told[2],
        )  # fmt: skip

    def _now_t(self, state: RunState, alive: bool) -> float:
        told = state.t + self.story.chronicle.shift_s
        if state.over or not alive:
            return told
        return max(told, time.time() - self.story.chronicle.created_time)

    def _read_figures(self, attempt: int) -> Figures:
        """The newest ones, read when there are others."""
        try:
            changed = self.run.figures.stat().st_mtime
            if changed != self._figures[0]:
                self._figures = changed, figures.from_json(json.loads(self.run.figures.read_bytes()))
        except (OSError, ValueError):  # none yet, or out of reach just now
            pass
        found = self._figures[1]
        return found if found.attempt == attempt else Figures()


def _read(path: Path) -> dict[str, Any]:
    """A file's mapping; empty where there is none, or it is out of reach just now."""
    try:
        value = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}
