"""`distperf save`: all ranks write a checkpoint after the step that they are at."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

from launcher.asking import ask_controller
from launcher.errors import LauncherError, UsageError
from launcher.events import Event, RankReported
from launcher.follow import Follower
from launcher.rundir import RunDir

LOOK_S = 0.2


def ask_to_save(run: RunDir) -> int:
    """Ask for a checkpoint; returns the newest step that is known to be finished before it.

    Raises UsageError: the run is over, saves nothing, or cannot be asked from here.
    """
    follower = Follower(run)
    follower.news()
    seen = follower.seen()
    if seen.over:
        raise UsageError(f"run {seen.state.run_id} is over ({seen.name}): there is nothing to save")
    if not _saves(run):
        raise UsageError(
            "this run writes no checkpoints (checkpoint.every_steps is 0 and checkpoint.save_last false)"
        )
    ask_controller(seen.state, "save")
    return seen.step


def _saves(run: RunDir) -> bool:
    try:
        spec = json.loads(run.runspec.read_text("utf-8"))
        checkpoint = spec.get("checkpoint", {"save_last": True})
        return bool(checkpoint.get("every_steps") or checkpoint.get("save_last"))
    except (OSError, ValueError):  # another version's: the ranks know
        return True


def save_run(run: RunDir) -> str:
    """Ask, and wait until the checkpoint is there; returns a sentence.

    Raises UsageError as `ask_to_save`, LauncherError where it could not be written, or the run ended before.
    """
    follower = Follower(run)
    follower.news()
    after = ask_to_save(run)
    while True:
        happened, _ = follower.news()
        for record in _of_checkpoints(happened):
            if record["event"] == "checkpoint_failed":
                raise LauncherError(f"the checkpoint could not be written: {record.get('problem')}")
            if int(record.get("step") or 0) > after:
                return f"checkpoint of step {record['step']}: {record.get('path')}"
        seen = follower.seen()
        if seen.over or seen.state.failure is not None:
            raise LauncherError(
                f"run {seen.state.run_id} is {seen.name}: it has not saved after step {after}"
            )
        time.sleep(LOOK_S)


def _of_checkpoints(happened: list[Event]) -> Iterator[dict[str, Any]]:
    for event in happened:
        if isinstance(event, RankReported) and event.record.get("event") in (
            "checkpoint",
            "checkpoint_failed",
        ):
            yield event.record
