"""Generations kept in memory by forked ranks, each a node of its own, of which one is killed at a chosen point.

Run as a program: prints what each kill left, to both nodes, and to the other one alone where the victim's is lost as
well. Points are as in kill_points.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import threading
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from kill_points import ORIGIN, WORLD, Points, in_children, state

from distperf.checkpoint.background import SaveThread
from distperf.checkpoint.load import load_newest
from distperf.checkpoint.manifest import Position
from distperf.checkpoint.memory.keep import Keeper
from distperf.checkpoint.memory.place import Place, meet
from distperf.checkpoint.memory.recall import Recall


def at_node(folder: Path, node: int, rank: int) -> Place:
    """As the launcher starts a rank: its node's folder is in the environment."""
    os.environ["DISTPERF_MEMORY"] = str(folder / f"node-{node}")
    return meet(rank)


def go_on(folder: Path, place: Place, attempt: int) -> dict[str, Any]:
    """Begin an attempt: the step it starts from, and whether each weight is the one of this step."""
    owned, flat = state(-1000)
    recall = Recall(place)
    origin = replace(ORIGIN, attempt=attempt)
    found = load_newest(str(folder / "disk"), origin, "", lambda: owned, writes=False, recall=recall)
    recall.forget_others(found.manifest.step if found is not None else None)
    if found is None:
        return {"step": 0, "exact": True, "passed_over": []}
    expected = state(found.manifest.step)[1]
    return {
        "step": found.manifest.step,
        "exact": torch.equal(flat, expected),
        "passed_over": found.passed_over,
    }


def keep(place: Place, attempt: int, step: int, points: Points | None) -> None:
    """As one rank: keep the state after `step`, with the thread that does it beside training."""
    owned, flat = state(step)
    keeper = Keeper(place, replace(ORIGIN, attempt=attempt), copies=1)
    if points is not None:
        threading.setprofile(points)
        sys.setprofile(points)
    written = keeper.write(Position(step, step, 0, 0), owned)
    flat.fill_(-1)  # the next step's update does not leak in
    SaveThread(step, partial(keeper.finish, written)).result()
    sys.setprofile(None)


@dataclass
class Trial:
    """Generations of one run. `step` is the newest that is whole."""

    folder: Path
    attempt: int = 0
    step: int = 0

    def keep(self, victim: int, kill_at: int | None) -> tuple[list[int], list[str]]:
        """The next step, `victim` being killed at this point: exit codes, and the victim's points if it was not."""
        self.attempt += 1
        self.step += 10
        note = self.folder / "points"
        codes = in_children(self.folder / "store", WORLD, self._keep, victim, kill_at, note)
        return codes, json.loads(note.read_text()) if kill_at is None else []

    def _keep(self, victim: int, kill_at: int | None, note: Path) -> None:
        rank = dist.get_rank()
        place = at_node(self.folder, rank, rank)
        go_on(self.folder, place, self.attempt)
        points = Points(kill_at) if rank == victim else None
        keep(place, self.attempt, self.step, points)
        if points is not None:
            note.write_text(json.dumps(points.names))

    def load(self, node: int | None) -> dict[str, Any]:
        """What the next attempt finds, on both nodes or on one alone. Both together tidy up; one changes nothing."""
        note = self.folder / "found"
        world = WORLD if node is None else 1
        assert in_children(self.folder / "store", world, self._load, node, note) == [0] * world
        return json.loads(note.read_text())

    def _load(self, node: int | None, note: Path) -> None:
        rank = dist.get_rank()
        folder = self.folder
        if node is not None:  # a copy: the other node is not gone
            folder = self.folder / "alone"
            shutil.rmtree(folder, ignore_errors=True)
            shutil.copytree(self.folder / f"node-{node}", folder / f"node-{node}")
        found = go_on(folder, at_node(folder, rank if node is None else node, rank), self.attempt + 1)
        if rank == 0:
            note.write_text(json.dumps(found))


def main(folder: Path) -> None:
    """Kill rank 0, then rank 1, at each of its points in turn; print a line of JSON for each."""
    for node in range(WORLD):
        (folder / f"node-{node}").mkdir()
    trial = Trial(folder)
    trial.keep(0, None)
    for victim in range(WORLD):
        codes, names = trial.keep(victim, None)
        assert codes == [0] * WORLD
        for kill_at, name in enumerate(names):
            if names[kill_at - 1 : kill_at] == [name] == names[kill_at + 1 : kill_at + 2]:
                continue  # neither the first nor the last of its kind in a row
            before = trial.step
            codes, _ = trial.keep(victim, kill_at)
            saving = trial.step
            told = {"victim": victim, "point": name, "killed": codes[victim] == -signal.SIGKILL}
            found = {"other": trial.load(1 - victim), "both": trial.load(None)}
            print(json.dumps({**told, "before": before, "saving": saving, **found}), flush=True)
            trial.step = found["both"]["step"]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
