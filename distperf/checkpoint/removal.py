"""Checkpoints that go. No torch."""

from __future__ import annotations

import shutil
from pathlib import Path

from distperf.checkpoint.manifest import CheckpointInfo, hidden_name, leftovers


def remove(info: CheckpointInfo, run_id: str, attempt: int) -> None:
    """Remove a checkpoint; it stops being one before its first file goes. Raises OSError.

    Killed on the way, it leaves a hidden folder, which the next attempt of the run removes.
    """
    hidden = info.path.parent / hidden_name(info.step, "removing", attempt, run_id)
    shutil.rmtree(hidden, ignore_errors=True)  # of an attempt of the same number, which was killed
    info.path.rename(hidden)
    shutil.rmtree(hidden)


def remove_leftovers(folder: str, run_id: str) -> None:
    """Remove what earlier attempts of this run left half written. Rank 0, before training."""
    for path in leftovers(Path(folder), run_id):
        shutil.rmtree(path, ignore_errors=True)
