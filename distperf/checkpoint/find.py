"""Which checkpoint a person means by a path: one itself, or the newest in a folder of them or of a run."""

from __future__ import annotations

from pathlib import Path

from distperf.checkpoint.choose import newest
from distperf.checkpoint.manifest import MANIFEST, CheckpointInfo, inspect, list_checkpoints
from distperf.errors import CheckpointError


def find_checkpoint(path: Path) -> CheckpointInfo:
    """The complete checkpoint at `path`, or the newest complete one in it or in its checkpoints/.

    Raises:
        CheckpointError: there is none; says what is wrong with those that are there.
    """
    if (path / MANIFEST).exists():
        found = inspect(path)
        if not found.complete:
            raise CheckpointError(f"{path}: cannot be used: {found.problem}")
        return found
    inner = path / "checkpoints"
    folder = inner if inner.is_dir() else path
    start = newest(list_checkpoints(folder), str(folder))
    assert start.checkpoint is not None, "newest raises where there is none"
    return start.checkpoint
