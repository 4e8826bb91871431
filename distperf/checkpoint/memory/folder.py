"""What a node's memory holds of checkpoints. No torch.

FOLDER/step-00000015/        a generation: as a checkpoint on disk, less the files that only other nodes hold
    __0_0.distcp ...         of this node's ranks, and copies of those of the node before
    index.json
    manifest.json            the same bytes on every node; names all files
FOLDER/.step-00000020/       being written

The launcher's agent makes FOLDER and removes it when the run ends.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from distperf.checkpoint.index import INDEX
from distperf.checkpoint.manifest import MANIFEST, CheckpointInfo, is_step_name, list_checkpoints, step_name
from distperf.checkpoint.memory.route import Held
from distperf.checkpoint.verify import damaged_files


def partial_name(step: int) -> str:
    """Name of a generation's folder while it is being written."""
    return f".{step_name(step)}"


def look(folder: Path, *, closely: bool = False) -> list[Held]:
    """The generations that a node holds parts of. `closely`: every byte is read; else what is damaged may count.

    Raises:
        CheckpointError: it cannot be looked at.
    """
    return [_held(info, closely) for info in list_checkpoints(folder) if info.manifest is not None]


def _held(info: CheckpointInfo, closely: bool) -> Held:
    assert info.manifest is not None
    sizes = {name: sums.bytes for name, sums in info.manifest.files.items()}
    there = {name for name, size in sizes.items() if _size(info.path / name) == size}
    read = there if closely else there & {INDEX}  # by which all others are found
    sound = there - {damage.path.name for damage in damaged_files(info.path, info.manifest, read)}
    text = (info.path / MANIFEST).read_bytes()
    seal = text.partition(b"\n")[0].decode("ascii")
    files = {name: sizes[name] for name in sorted(sound)}
    return Held(info.step, seal, {**files, MANIFEST: len(text)}, len(sizes) + 1)


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return None


def keep_only(folder: Path, step: int | None) -> None:
    """Remove every generation but that of `step`, and what was being written: before training."""
    for path in folder.iterdir():
        is_generation = is_step_name(path.name.removeprefix("."))
        if is_generation and (step is None or path.name != step_name(step)):
            shutil.rmtree(path, ignore_errors=True)


def remove_older(folder: Path, step: int) -> None:
    """Remove the generations before `step`, and nothing else: other ranks may be writing the next one."""
    for path in folder.iterdir():
        if is_step_name(path.name) and int(path.name.removeprefix("step-")) < step:
            shutil.rmtree(path, ignore_errors=True)


def used_bytes(folder: Path) -> int:
    """Bytes of all generations."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
