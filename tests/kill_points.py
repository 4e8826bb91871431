"""Saves by forked ranks of which one is killed at a chosen point. Run as a program: prints what each kill left.

A point is a call of the save into the operating system (open, write, fsync, rename, ...), told by Python's own
profiling hook: what runs is the program as it is. The kill comes before the call is made.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist

from distperf.checkpoint.background import HostCopy, SaveThread
from distperf.checkpoint.choose import Retention
from distperf.checkpoint.load import load_newest
from distperf.checkpoint.manifest import Origin, Position
from distperf.checkpoint.save import CheckpointWriter
from distperf.errors import CheckpointError
from distperf.parallel.pieces import OwnedTensor, pieces_of

ORIGIN = Origin("run-a", "n", 1, 2, {"layers": 2}, "fp32", 2, {})
WORLD = 2
ROWS = 6
CALLS = {
    "open",
    "write",
    "pwrite",
    "flush",
    "fsync",
    "close",
    "mkdir",
    "rename",
    "replace",
    "symlink",
    "unlink",
    "rmdir",
    "posix_fallocate",
    "send",
    "recv",
}


class Points:
    """Counts the calls into the operating system that a save makes, and kills this process before one of them."""

    def __init__(self, kill_at: int | None) -> None:
        self.names: list[str] = []
        self._kill_at = kill_at

    def __call__(self, frame: FrameType, event: str, called: Any) -> None:
        if event != "c_call" or called.__name__ not in CALLS:
            return
        ours = _our_function(frame)
        if ours is None:
            return
        self.names.append(f"{ours}:{called.__name__}")
        if len(self.names) - 1 == self._kill_at:
            os.kill(os.getpid(), signal.SIGKILL)


def _our_function(frame: FrameType | None) -> str | None:
    """The function of distperf.checkpoint that a call is made from, directly or through pathlib and the like."""
    while frame is not None:
        if "/distperf/checkpoint/" in frame.f_code.co_filename:
            return frame.f_code.co_name
        frame = frame.f_back
    return None


def state(value: float) -> tuple[dict[str, OwnedTensor], torch.Tensor]:
    """This rank's rows of a matrix; element i is value + i."""
    rows = ROWS // dist.get_world_size()
    start = dist.get_rank() * rows * 4
    flat = torch.arange(start, start + rows * 4).float() + value
    return {"model.a": OwnedTensor((ROWS, 4), torch.float32, pieces_of(flat, (ROWS, 4), start))}, flat


def save(folder: str, attempt: int, step: int, points: Points | None, asynchronous: bool) -> None:
    """As one rank of an attempt: what a run does, from finding its start to the end of one save."""
    origin = replace(ORIGIN, attempt=attempt)
    owned, flat = state(step)
    load_newest(folder, origin, "", lambda: state(0)[0])
    writer = CheckpointWriter(folder, origin, Retention(1))
    position = Position(step, step, 0, 0)
    if points is not None:
        threading.setprofile(points)
        sys.setprofile(points)
    if asynchronous:
        running = SaveThread(step, partial(writer.save, position, HostCopy().take(owned)))
        flat.fill_(-1)  # the next step's update does not leak into the save
        running.result()
    else:
        writer.save(position, owned)
    sys.setprofile(None)


def load(folder: str, attempt: int) -> dict[str, Any]:
    """As the next attempt's only rank: the step it starts from, and whether each weight is the one of this step."""
    owned, flat = state(-1000)
    found = load_newest(folder, replace(ORIGIN, attempt=attempt), "", lambda: owned)
    assert found is not None
    exact = torch.equal(flat, torch.arange(ROWS * 4).float() + found.manifest.step)
    return {"step": found.manifest.step, "exact": exact, "passed_over": found.passed_over}


def in_children(store: Path, world: int, job: Callable[..., Any], *args: Any) -> list[int]:
    """Fork `world` ranks that do `job(*args)`; when one dies the others are killed, as a launcher does. Exit codes."""
    store.unlink(missing_ok=True)
    ranks: dict[int, int] = {}
    for rank in range(world):
        if (pid := os.fork()) == 0:
            dist.init_process_group(
                "gloo", store=dist.FileStore(str(store), world), rank=rank, world_size=world
            )
            try:
                job(*args)
            except (CheckpointError, RuntimeError):  # the other one was killed
                os._exit(1)
            os._exit(0)
        ranks[pid] = rank
    codes = [0] * world
    while ranks:
        pid, status = os.wait()
        rank = ranks.pop(pid)
        codes[rank] = os.waitstatus_to_exitcode(status)
        if codes[rank]:
            for other in ranks:
                os.kill(other, signal.SIGKILL)
                codes[ranks[other]] = os.waitstatus_to_exitcode(os.waitpid(other, 0)[1])
            break
    return codes


@dataclass
class Trial:
    """Saves of one run, the ranks of each attempt forked anew. `step` is the newest that is saved."""

    folder: Path
    asynchronous: bool
    attempt: int = 0
    step: int = 0

    def save(self, victim: int, kill_at: int | None) -> tuple[list[int], list[str]]:
        """The next step, `victim` being killed at this point: exit codes, and the victim's points if it was not."""
        self.attempt += 1
        self.step += 10
        note = self.folder / "points"
        codes = in_children(self.folder / "store", WORLD, self._save, victim, kill_at, note)
        return codes, json.loads(note.read_text()) if kill_at is None else []

    def _save(self, victim: int, kill_at: int | None, note: Path) -> None:
        points = Points(kill_at) if dist.get_rank() == victim else None
        save(str(self.folder / "c"), self.attempt, self.step, points, self.asynchronous)
        if points is not None:
            note.write_text(json.dumps(points.names))

    def load(self) -> dict[str, Any]:
        """What the next attempt finds."""
        self.attempt += 1
        note = self.folder / "found"
        assert in_children(self.folder / "store", 1, self._load, note) == [0]
        return json.loads(note.read_text())

    def _load(self, note: Path) -> None:
        note.write_text(json.dumps(load(str(self.folder / "c"), self.attempt)))


def main(folder: Path, asynchronous: bool) -> None:
    """Kill rank 0, then rank 1, at each of its points in turn; print a line of JSON for each.

    Every save meets what the killed one before it left. Once a new step has survived a kill, the next is tried.
    """
    trial = Trial(folder, asynchronous)
    trial.save(0, None)
    for victim in range(WORLD):
        codes, names = trial.save(victim, None)
        assert codes == [0] * WORLD
        for kill_at, name in enumerate(names):
            if names[kill_at - 1 : kill_at] == [name] == names[kill_at + 1 : kill_at + 2]:
                continue  # neither the first nor the last of its kind in a row
            before = trial.step
            codes, _ = trial.save(victim, kill_at)
            saving, found = trial.step, trial.load()
            told = {"victim": victim, "point": name, "killed": codes[victim] == -signal.SIGKILL}
            print(json.dumps({**told, "before": before, "saving": saving, **found}), flush=True)
            trial.step = found["step"]


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2] == "async")
