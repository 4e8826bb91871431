"""Write a checkpoint so that it is complete or absent, whatever dies on the way. Every rank calls `save`.

All ranks write into a hidden folder beside the final one; when every file is on disk, rank 0 writes the
manifest, renames the folder and re-points `latest`. A kill at any point leaves the older checkpoints as they
were and at most a hidden folder, which the run's next attempt removes. That attempt claims the folder first: a
writer of an earlier one that is still alive somewhere finds the claim and leaves everything as it is. Each phase
ends with an exchange of how it went: all ranks succeed or fail together, and nobody waits in a barrier for a
rank whose disk was full.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from distperf.checkpoint import shards
from distperf.checkpoint.agree import agreed
from distperf.checkpoint.choose import choose_removals
from distperf.checkpoint.manifest import (
    LATEST,
    MANIFEST_SCHEMA,
    Manifest,
    Origin,
    hidden_name,
    inspect,
    leftovers,
    list_checkpoints,
    newest_attempt,
    step_name,
    write_manifest,
)
from distperf.errors import CheckpointError
from distperf.version import __version__


@dataclass(frozen=True)
class Saved:
    """What `save` did. `written` is false where a complete one of this step was there already."""

    path: Path
    step: int
    written: bool
    size_bytes: int
    seconds: float


class CheckpointWriter:
    """Saves one run's checkpoints into one folder and keeps the newest `keep` of them (0: all)."""

    def __init__(self, folder: str, origin: Origin, keep: int) -> None:
        self._folder = Path(folder)
        self._origin = origin
        self._keep = keep

    def save(
        self,
        step: int,
        state: shards.State,
        *,
        optimizer_step: int,
        tokens: int,
        samples: int,
        loss_scale: dict[str, Any] | None = None,
    ) -> Saved:
        """Write the checkpoint after `step`. Collective: every rank calls it with its own pieces.

        A complete one that an earlier attempt of this run wrote for this step is kept as it is (same run and
        step, same content); a damaged one is replaced.

        Raises:
            CheckpointError: on every rank, when it failed on any, or a later attempt of this run has begun. Older
                checkpoints are untouched.

        Cost: no tensor bytes are sent; four JSON exchanges, the third about 200 bytes a piece.
        """
        began = time.monotonic()
        rank, final = dist.get_rank(), self._folder / step_name(step)
        partial = self._folder / hidden_name(step, "partial", self._origin.attempt, self._origin.run_id)
        needed = sum(agreed(f"cannot save {final}", lambda: shards.saved_bytes(state)))
        wanted = agreed(f"cannot save {final}", lambda: rank == 0 and self._prepare(final, partial, needed))[
            0
        ]
        size = 0
        if wanted:
            try:
                described = agreed(f"cannot save {final}", lambda: shards.write_shard(partial, rank, state))
                progress = {
                    "step": step,
                    "optimizer_step": optimizer_step,
                    "tokens": tokens,
                    "samples": samples,
                    "loss_scale": loss_scale,
                }
                size = agreed(
                    f"cannot save {final}",
                    lambda: self._commit(partial, final, described, progress) if rank == 0 else 0,
                )[0]
            except CheckpointError:
                if rank == 0:
                    shutil.rmtree(partial, ignore_errors=True)
                raise
        return Saved(final, step, bool(wanted), size, time.monotonic() - began)

    def _prepare(self, final: Path, partial: Path, needed: int) -> bool:
        """Make the hidden folder. False when a complete checkpoint is there already."""
        self._refuse_if_late()
        if final.exists() and inspect(final).complete:
            return False
        self._folder.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(self._folder).free
        if needed > free:
            raise CheckpointError(f"it needs {needed:,} bytes and {self._folder} has {free:,} free")
        partial.mkdir()
        return True

    def _commit(
        self,
        partial: Path,
        final: Path,
        described: Sequence[Sequence[shards.Described]],
        progress: dict[str, Any],
    ) -> int:
        """Make the written folder the checkpoint; then let surplus ones go. Returns its size in bytes."""
        shards.write_metadata(partial, described)
        files = {path.name: path.stat().st_size for path in partial.iterdir()}
        created = datetime.now(timezone.utc).isoformat(timespec="seconds")
        manifest = Manifest(
            **asdict(self._origin),
            **progress,
            schema=MANIFEST_SCHEMA,
            files=files,
            created=created,
            distperf=__version__,
            torch=torch.__version__,
        )
        write_manifest(partial, manifest)
        sync_folder(partial)
        self._refuse_if_late()
        if final.exists():  # damaged, or _prepare would have kept it
            self._remove(final, progress["step"])
        partial.rename(final)
        self._point_latest(final)
        sync_folder(self._folder)
        self._retain(progress["step"])
        return sum(files.values())

    def _refuse_if_late(self) -> None:
        newest = newest_attempt(self._folder, self._origin.run_id)
        if newest > self._origin.attempt:
            raise CheckpointError(
                f"attempt {newest} of this run has begun, and this is {self._origin.attempt}"
            )

    def _point_latest(self, final: Path) -> None:
        fresh = self._folder / f".{LATEST}-{os.getpid()}"
        fresh.unlink(missing_ok=True)
        fresh.symlink_to(final.name)
        fresh.replace(self._folder / LATEST)

    def _retain(self, step: int) -> None:
        found = list_checkpoints(self._folder)
        for info in choose_removals(found, self._origin.run_id, self._keep, just_written=step):
            self._remove(info.path, info.step)

    def _remove(self, path: Path, step: int) -> None:
        """Remove a checkpoint; it stops being one before its first file goes."""
        hidden = self._folder / hidden_name(step, "removing", self._origin.attempt, self._origin.run_id)
        path.rename(hidden)
        shutil.rmtree(hidden)


def remove_leftovers(folder: str, run_id: str) -> None:
    """Remove what earlier attempts of this run left half written. Rank 0, before training."""
    for path in leftovers(Path(folder), run_id):
        shutil.rmtree(path, ignore_errors=True)


def sync_folder(path: Path) -> None:
    """Force a folder's entries (new names, renames) to disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
