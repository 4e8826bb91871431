"""Find the checkpoint to start from and fill the training state with it. Every rank calls these."""

from __future__ import annotations

import pickle
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch.distributed as dist

from distperf.checkpoint import shards
from distperf.checkpoint.agree import agreed
from distperf.checkpoint.choose import choose_start, refuse_other_model
from distperf.checkpoint.manifest import (
    MANIFEST,
    CheckpointInfo,
    Manifest,
    Origin,
    claim,
    inspect,
    list_checkpoints,
)
from distperf.checkpoint.save import remove_leftovers
from distperf.errors import CheckpointError, CheckpointMissing


@dataclass(frozen=True)
class Found:
    """The checkpoint that all ranks start from. `passed_over` says what is wrong with the newer ones."""

    path: Path
    manifest: Manifest
    passed_over: tuple[str, ...]


def find_start(folder: str, origin: Origin, resume: str, *, writes: bool = True) -> Found | None:
    """Choose where to start; None means from nothing. Collective; only rank 0 looks at the disk.

    Also removes what an earlier attempt of this run left half written in `folder`, and shuts such an attempt out.

    Args:
        folder: checkpoint.dir
        origin: this run
        resume: a checkpoint folder or a folder that holds some; "" for this run's own newest, if any
        writes: this run will save there

    Raises:
        CheckpointError: as `choose_start` and `refuse_other_model`; on every rank.
    """

    def look() -> dict[str, Any] | None:
        if dist.get_rank() != 0:
            return None
        if writes and origin.attempt > 1:
            claim(Path(folder), origin.run_id, origin.attempt)
        return _look(folder, origin, resume)

    chosen = agreed("cannot start", look)[0]
    if chosen is None:
        return None
    return Found(Path(chosen["path"]), Manifest(**chosen["manifest"]), tuple(chosen["passed_over"]))


def load(found: Found, state: shards.State) -> None:
    """Fill every rank's pieces in place. Collective: all ranks succeed or all raise.

    Raises:
        CheckpointError: a tensor is not there, or a file cannot be read.

    Cost: no tensor bytes are sent: each rank reads what it needs from the folder.
    """
    agreed(f"cannot load {found.path}", lambda: _read(found.path, state))


def _read(path: Path, state: shards.State) -> None:
    try:
        shards.read_shards(path, state)
    except pickle.UnpicklingError as error:
        raise CheckpointError(str(error)) from error


def _look(folder: str, origin: Origin, resume: str) -> dict[str, Any] | None:
    remove_leftovers(folder, origin.run_id)
    start = choose_start(
        folder=folder,
        found=list_checkpoints(folder),
        run_id=origin.run_id,
        resume=resume,
        asked=_asked(resume),
        attempt=origin.attempt,
    )
    if start.checkpoint is None:
        return None
    refuse_other_model(start.checkpoint, origin.model)
    assert start.checkpoint.manifest is not None, "only complete checkpoints are chosen"
    return {
        "path": str(start.checkpoint.path),
        "manifest": asdict(start.checkpoint.manifest),
        "passed_over": [info.problem for info in start.passed_over],
    }


def _asked(resume: str) -> list[CheckpointInfo]:
    """What the folder named to resume from is, or holds."""
    path = Path(resume)
    if not resume:
        return []
    if not path.is_dir():
        raise CheckpointMissing(f"{path}: no such folder to resume from")
    if (path / MANIFEST).exists():
        return [inspect(path)]
    return list_checkpoints(path)
