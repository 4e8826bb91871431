"""Write a checkpoint so that it is complete or absent, whatever dies on the way. Every rank calls `save`.

All ranks write into a hidden folder beside the final one; when every file is on disk, rank 0 writes the
manifest, renames the folder and re-points `latest` and `best`. A kill at any point leaves the older checkpoints as they
were and at most a hidden folder, which the run's next attempt removes. That attempt claims the folder first: a
writer of an earlier one that is still alive somewhere finds the claim and leaves everything as it is. Each phase
ends with an exchange of how it went: all ranks succeed or fail together, and nobody waits in a barrier for a
rank whose disk was full.

These exchanges have a process group of their own, so that a thread can save while training communicates.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from distperf.checkpoint import choose, shards
from distperf.checkpoint.agree import agreed
from distperf.checkpoint.choose import Retention
from distperf.checkpoint.index import merged
from distperf.checkpoint.manifest import (
    BEST,
    LATEST,
    CheckpointInfo,
    Manifest,
    Origin,
    Position,
    file_sums,
    hidden_name,
    inspect,
    list_checkpoints,
    new_manifest,
    newest_attempt,
    now,
    read_manifest,
    step_name,
    write_manifest,
)
from distperf.checkpoint.removal import remove
from distperf.errors import CheckpointError, CheckpointSuperseded

# How long ranks wait for the one that writes longest; training meanwhile goes on, under its own limits.
WRITE_TIMEOUT = timedelta(hours=1)


@dataclass(frozen=True)
class Saved:
    """What `save` did. `written`: false where this attempt saved this step before. `best`: by the metric, so far."""

    path: Path
    step: int
    written: bool
    size_bytes: int
    seconds: float
    best: bool = False


class CheckpointWriter:
    """Saves one run's checkpoints into one folder and removes those it need not keep. Made by all ranks together."""

    def __init__(self, folder: str, origin: Origin, retention: Retention) -> None:
        self._folder = Path(folder)
        self._origin = origin
        self._retention = retention
        self._group = dist.new_group(backend="gloo", timeout=WRITE_TIMEOUT)

    def save(self, position: Position, state: shards.State) -> Saved:
        """Write a checkpoint. Collective: every rank calls it with its own pieces, from any one thread.

        One that this attempt has written for this step is kept as it is; one that an earlier attempt wrote was passed
        over when this one began, and is replaced.

        Raises:
            CheckpointSuperseded: on every rank: a later attempt of this run has begun.
            CheckpointError: on every rank, when it failed on any. Older checkpoints are untouched, and nothing of
                this one is left.

        Cost: no tensor bytes are sent; four JSON exchanges, the third about 250 bytes a piece and 40 a block.
        """
        began = time.monotonic()
        rank, final = dist.get_rank(), self._folder / step_name(position.step)
        partial = self._folder / hidden_name(
            position.step, "partial", self._origin.attempt, self._origin.run_id
        )
        needed = sum(self._agreed(final, lambda: shards.saved_bytes(state)))
        wanted = self._agreed(final, lambda: rank == 0 and self._prepare(final, partial, needed))[0]
        size, best = 0, False
        if wanted:
            try:
                written = self._agreed(final, lambda: shards.write_shard(partial, rank, state))
                size, best = self._agreed(
                    final, lambda: self._commit(partial, final, written, position) if rank == 0 else None
                )[0]
            except CheckpointError:
                if rank == 0:
                    shutil.rmtree(partial, ignore_errors=True)
                raise
        return Saved(final, position.step, bool(wanted), size, time.monotonic() - began, best)

    def _agreed(self, final: Path, action: Any) -> list[Any]:
        return agreed(f"cannot save {final}", action, self._group)

    def _prepare(self, final: Path, partial: Path, needed: int) -> bool:
        """Make the hidden folder. False when this attempt has saved this step before."""
        self._refuse_if_late()
        if self._has_written(inspect(final)):
            return False
        self._folder.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(self._folder).free
        if needed > free:
            raise CheckpointError(f"it needs {needed:,} bytes and {self._folder} has {free:,} free")
        partial.mkdir()
        return True

    def _has_written(self, found: CheckpointInfo) -> bool:
        return (
            found.complete
            and found.manifest is not None
            and (found.manifest.run_id, found.manifest.attempt) == (self._origin.run_id, self._origin.attempt)
        )

    def _commit(
        self, partial: Path, final: Path, written: Sequence[Mapping[str, Any]], position: Position
    ) -> tuple[int, bool]:
        """Make the written folder the checkpoint; then let surplus ones go. Its bytes; is it the best so far?"""
        files = file_sums({name: sums for part in written for name, sums in part["files"].items()})
        files.update(shards.write_indexes(partial, merged(part["tensors"] for part in written)))
        manifest = new_manifest(self._origin, position, files, torch=torch.__version__, created=now())
        write_manifest(partial, manifest)
        sync_folder(partial)
        self._refuse_if_late()
        if final.exists():  # damaged, or passed over when this attempt began
            remove(inspect(final), self._origin.run_id, self._origin.attempt)
        _rename(partial, final, manifest)
        self._point(LATEST, final)
        sync_folder(self._folder)
        return manifest.size_bytes, self._retain(position.step)

    def _refuse_if_late(self) -> None:
        newest = newest_attempt(self._folder, self._origin.run_id)
        if newest > self._origin.attempt:
            raise CheckpointSuperseded(
                f"attempt {newest} of this run has begun, and this is {self._origin.attempt}"
            )

    def _point(self, link: str, target: Path) -> None:
        fresh = self._folder / f".{link}-{os.getpid()}"
        fresh.unlink(missing_ok=True)
        fresh.symlink_to(target.name)
        fresh.replace(self._folder / link)

    def _retain(self, step: int) -> bool:
        """Re-point `best`, and let surplus checkpoints go. Is the one of `step`, just written, the best?"""
        found = list_checkpoints(self._folder)
        best = choose.best(found, self._origin.run_id, self._retention, just_written=step)
        if best is not None:
            self._point(BEST, best.path)
        for info in choose.choose_removals(found, self._origin.run_id, self._retention, just_written=step):
            remove(info, self._origin.run_id, self._origin.attempt)
        return best is not None and best.step == step


def _rename(partial: Path, final: Path, manifest: Manifest) -> None:
    """Give the checkpoint its name. A network file system may do so and, asked again, say that it cannot."""
    try:
        partial.rename(final)
    except OSError:
        if not final.exists() or read_manifest(final) != manifest:
            raise


def sync_folder(path: Path) -> None:
    """Force a folder's entries (new names, renames) to disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
