"""Find the checkpoint to start from, on disk or in memory, and fill the training state with it. Every rank calls these.

Rank 0 looks at the folder and checks what is small (manifest, indexes); then each rank checks what it reads. Damage
found by either sends all ranks to the checkpoint before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch.distributed as dist

from distperf.checkpoint.agree import agreed
from distperf.checkpoint.choose import Start, choose_start, refuse_other_model
from distperf.checkpoint.index import INDEX
from distperf.checkpoint.manifest import (
    MANIFEST,
    CheckpointInfo,
    Manifest,
    Origin,
    claim,
    inspect,
    list_checkpoints,
    manifest_of,
)
from distperf.checkpoint.memory.recall import Recall
from distperf.checkpoint.read import Stored
from distperf.checkpoint.removal import remove_leftovers
from distperf.checkpoint.shards import METADATA, State
from distperf.checkpoint.verify import damaged_files
from distperf.errors import CheckpointCorrupt, CheckpointError, CheckpointMissing


@dataclass(frozen=True)
class Found:
    """The checkpoint that all ranks start from. `passed_over` says what is wrong with the newer ones.

    `in_memory`: it is in the nodes' memory; `path` is then where rank 0's node has it, and `mended` what was damaged
    on one node and taken from another.
    """

    path: Path
    manifest: Manifest
    passed_over: tuple[str, ...]
    in_memory: bool = False
    mended: tuple[str, ...] = ()


def load_newest(
    folder: str,
    origin: Origin,
    resume: str,
    state: Callable[[], State],
    *,
    writes: bool = True,
    recall: Recall | None = None,
) -> Found | None:
    """Fill every rank's pieces from the newest checkpoint that is whole, and return it; None: start from nothing.

    Collective. Arguments as of `find_start`; `state` gives the pieces to fill, and is asked for if there is one.

    Raises:
        CheckpointError: as `find_start` and `load`, but not for damage while an older one is left to try, nor for
            anything about one in memory.
    """
    damaged: dict[str, str] = {}
    while (found := find_start(folder, origin, resume, damaged, writes=writes, recall=recall)) is not None:
        try:
            if recall is not None and found.in_memory:
                found = replace(found, mended=recall.fill(found.manifest, state()))
            else:
                load(found, state())
        except CheckpointError as error:
            if not (found.in_memory or isinstance(error, CheckpointCorrupt)):
                raise
            damaged[str(found.path)] = str(error)
        else:
            break
    return found


def find_start(
    folder: str,
    origin: Origin,
    resume: str,
    damaged: Mapping[str, str] | None = None,
    *,
    writes: bool = True,
    recall: Recall | None = None,
) -> Found | None:
    """Choose where to start; None means from nothing. Collective; only rank 0 looks at the disk.

    Also removes what an earlier attempt of this run left half written in `folder`, and shuts such an attempt out.

    Args:
        folder: checkpoint.dir
        origin: this run
        resume: a checkpoint folder or a folder that holds some; "" for this run's own newest, if any
        damaged: what was found wrong with checkpoints when they were read, by path
        writes: this run will save there
        recall: what the nodes hold in memory; of two of one step that is taken which is in memory

    Raises:
        CheckpointError: as `choose_start` and `refuse_other_model`; on every rank.
    """

    def look() -> dict[str, Any] | None:
        if dist.get_rank() != 0:
            return None
        if writes and origin.attempt > 1:
            claim(Path(folder), origin.run_id, origin.attempt)
        in_memory = recall.infos() if recall is not None else []
        return _look(folder, origin, resume, dict(damaged or {}), in_memory)

    chosen = agreed("cannot start", look)[0]
    if chosen is None:
        return None
    manifest, passed_over = manifest_of(chosen["manifest"]), tuple(chosen["passed_over"])
    return Found(Path(chosen["path"]), manifest, passed_over, chosen["in_memory"])


def load(found: Found, state: State) -> None:
    """Fill every rank's pieces in place. Collective: all ranks succeed or all raise.

    Raises:
        CheckpointCorrupt: some bytes that a rank needs are not what was written; names file and tensors.
        CheckpointError: a tensor is not there, or has another shape.

    Cost: no tensor bytes are sent: each rank reads what it needs from the folder; peak extra as `Stored.fill`.
    """
    agreed(f"cannot load {found.path}", lambda: Stored(found.path, found.manifest).fill(state))


def _look(
    folder: str,
    origin: Origin,
    resume: str,
    damaged: dict[str, str],
    in_memory: Sequence[CheckpointInfo],
) -> dict[str, Any] | None:
    remove_leftovers(folder, origin.run_id)
    found = sorted(
        [*list_checkpoints(folder), *in_memory], key=lambda info: info.step
    )  # equal ones stay in order
    asked = _asked(resume)
    while True:
        start = choose_start(
            folder=folder,
            found=_marked(found, damaged),
            run_id=origin.run_id,
            resume=resume,
            asked=_marked(asked, damaged),
            attempt=origin.attempt,
        )
        if start.checkpoint is None:
            return None
        problem = _small_damage(start.checkpoint)
        if problem is None:
            break
        damaged[str(start.checkpoint.path)] = problem
    return {**_chosen(start, origin), "in_memory": start.checkpoint.path in {info.path for info in in_memory}}


def _chosen(start: Start, origin: Origin) -> dict[str, Any]:
    assert start.checkpoint is not None
    assert start.checkpoint.manifest is not None, "only complete checkpoints are chosen"
    refuse_other_model(start.checkpoint, origin.model)
    return {
        "path": str(start.checkpoint.path),
        "manifest": asdict(start.checkpoint.manifest),
        "passed_over": [info.problem for info in start.passed_over],
    }


def _small_damage(info: CheckpointInfo) -> str | None:
    """What is wrong with the files that say where tensors lie. Each rank checks of the others what it reads."""
    assert info.manifest is not None
    small = [name for name in (INDEX, METADATA) if name in info.manifest.files]
    found = damaged_files(info.path, info.manifest, small)
    return found[0].problem if found else None


def _marked(found: Sequence[CheckpointInfo], damaged: Mapping[str, str]) -> list[CheckpointInfo]:
    return [replace(info, problem=damaged.get(str(info.path), info.problem)) for info in found]


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
