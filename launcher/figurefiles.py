"""figures.json, the newest figures of every rank and node, and figures.jsonl, folded, every ten seconds of a run."""

from __future__ import annotations

import json
import time

from launcher import figures
from launcher.figures import Figures, Numbers
from launcher.protocol import Figures as Told
from launcher.rundir import RunDir, write_atomic
from launcher.state import RunState

NEWEST_S = 5.0
HISTORY_S = 10.0


class FigureFiles:
    """The controller's pen for figures. Raises RunFolderError and OSError (a full disk)."""

    def __init__(self, run: RunDir) -> None:
        self._run = run
        self._ranks: dict[int, Numbers] = {}
        self._nodes: dict[str, Numbers] = {}
        self._attempt = 0
        self._fresh = False  # there is something that has not been written
        self._newest_t = self._history_t = 0.0

    def take(self, host: str, told: Told) -> None:
        """What an agent tells of its node and ranks; of an attempt before this one nothing."""
        if told.attempt < self._attempt:
            return
        if told.attempt > self._attempt:
            self._attempt, self._ranks, self._nodes = told.attempt, {}, {}
        self._ranks.update({int(rank): parts for rank, parts in told.ranks.items()})
        self._nodes[host] = told.node
        self._fresh = True

    def keep(self, state: RunState, *, last: bool = False) -> None:
        """Write, if it is time to, or the last time."""
        if not self._fresh or not (last or state.t - self._newest_t >= NEWEST_S):
            return
        self._fresh, self._newest_t = False, state.t
        found = Figures(self._attempt, self._ranks, self._nodes)
        write_atomic(self._run.figures, json.dumps(figures.as_json(found)))
        if not (last or state.t - self._history_t >= HISTORY_S):
            return
        self._history_t = state.t
        about = {"time": round(time.time(), 3), "t": state.t, "attempt": self._attempt, "step": state.step}
        line = json.dumps({**about, **figures.folded(found, state.ranks)})
        with self._run.usage.open("ab") as file:
            file.write(line.encode() + b"\n")
