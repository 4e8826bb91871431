"""A run's folder: the one place that knows every path in it, how a run is named, and how RUN finds one."""

from __future__ import annotations

import json
import os
import secrets
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.errors import RunFolderError, UsageError


def new_run_id(name: str, when: time.struct_time | None = None) -> str:
    """<name>-<YYYYmmdd-HHMMSS>-<4 hex>."""
    return f"{name}-{time.strftime('%Y%m%d-%H%M%S', when or time.localtime())}-{secrets.token_hex(2)}"


@dataclass(frozen=True)
class RunDir:
    """Paths of one run, which need not exist yet."""

    path: Path

    @property
    def run_id(self) -> str:
        """The folder's name is the run's id."""
        return self.path.name

    @property
    def recipe(self) -> Path:
        """The recipe as it was run, merged and checked."""
        return self.path / "recipe.yaml"

    @property
    def hostfile(self) -> Path:
        """The hostfile as it was given."""
        return self.path / "hostfile"

    @property
    def runspec(self) -> Path:
        """What every rank was told."""
        return self.path / "runspec.json"

    @property
    def placement(self) -> Path:
        """Which rank was put where."""
        return self.path / "placement.json"

    @property
    def plan(self) -> Path:
        """Memory and time as they were planned, and what for."""
        return self.path / "plan.json"

    @property
    def events(self) -> Path:
        """The journal."""
        return self.path / "events.jsonl"

    @property
    def bookmark(self) -> Path:
        """What the journal's first bytes come to."""
        return self.path / "bookmark.json"

    @property
    def metrics(self) -> Path:
        """One line a step."""
        return self.path / "metrics.jsonl"

    @property
    def figures(self) -> Path:
        """The newest figures of every rank and node."""
        return self.path / "figures.json"

    @property
    def usage(self) -> Path:
        """The same over time, folded."""
        return self.path / "figures.jsonl"

    @property
    def tensorboard(self) -> Path:
        """Curves for TensorBoard, where the recipe asks for them."""
        return self.path / "tensorboard"

    def tracking_log(self, name: str) -> Path:
        """What a tracker's process has to say."""
        return self.path / f"{name}.log"

    @property
    def superseded_metrics(self) -> Path:
        """Lines of steps that a later attempt did again."""
        return self.path / "metrics.superseded.jsonl"

    @property
    def slurm(self) -> Path:
        """Which job of SLURM's the run is, where it is one."""
        return self.path / "slurm.json"

    @property
    def controller_log(self) -> Path:
        """What a detached controller has to say."""
        return self.path / "controller.log"

    @property
    def checkpoints(self) -> Path:
        """Where checkpoints go unless the recipe names another folder."""
        return self.path / "checkpoints"

    def trace(self, number: str, rank: int) -> Path:
        """A rank's trace, of those that were asked for together."""
        return self.path / "profiles" / number / f"rank-{rank:05d}.json.gz"

    def logs(self, attempt: int) -> Path:
        """Folder of one attempt's rank logs."""
        return self.path / "logs" / f"attempt-{attempt}"

    def log(self, attempt: int, rank: int) -> Path:
        """Every byte a rank wrote."""
        return self.logs(attempt) / f"rank-{rank:05d}.log"

    def attempts(self) -> list[int]:
        """Attempts that have logs, in order."""
        try:
            names = os.listdir(self.path / "logs")
        except FileNotFoundError:
            return []
        return sorted(int(name[8:]) for name in names if name.startswith("attempt-") and name[8:].isdigit())

    def create(self, *, shared: bool = False) -> None:
        """Make the folder, readable by its owner, or its group too, and point `latest` at it.

        A job's may be there already. A setgid bit that it has of the folder above stays.
        """
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.mkdir(mode=0o700, exist_ok=self.slurm.exists())
            setgid = self.path.stat().st_mode & stat.S_ISGID
            self.path.chmod(setgid | (0o750 if shared else 0o700))
            temporary = self.path.parent / f".latest-{self.run_id}"
            temporary.symlink_to(self.run_id)
            temporary.replace(self.path.parent / "latest")
        except OSError as error:
            raise RunFolderError(f"cannot make the run folder {self.path}: {error.strerror}") from None

    def write_json(self, path: Path, value: Any) -> None:
        """Write one of the folder's JSON files, whole or not at all. Raises RunFolderError."""
        write_atomic(path, json.dumps(value, indent=1, sort_keys=True) + "\n")


@contextmanager
def readable_by_group(shared: bool) -> Iterator[None]:
    """While this is open, what this process writes can be read by the group, and by nobody else, if `shared`."""
    before = os.umask(0o027) if shared else None
    try:
        yield
    finally:
        if before is not None:
            os.umask(before)


def write_atomic(path: Path, text: str) -> None:
    """Write beside, then rename. Raises RunFolderError."""
    temporary = path.with_name(f".{path.name}.new")
    try:
        temporary.write_text(text, encoding="utf-8", errors="surrogateescape")
        temporary.replace(path)
    except OSError as error:
        raise RunFolderError(f"cannot write {path}: {error.strerror}") from None


def find_run(run: str | None, runs: Path) -> RunDir:
    """The run that RUN names: an id in `runs`, a folder, or nothing for the latest. Raises UsageError."""
    if run is None:
        latest = runs / "latest"
        if not latest.exists():
            raise UsageError(
                f"there is no run in {runs}: name one by its folder, or go where it was launched"
            )
        return RunDir(latest.resolve())
    for path in (runs / run, Path(run)):
        if _is_run(path):  # unlike Path's, false for any name that cannot be one
            return RunDir(path.resolve())
    near = sorted(r.run_id for r in all_runs(runs) if r.run_id.startswith(run))
    if len(near) == 1:
        return RunDir((runs / near[0]).resolve())
    found = f"; {run} could be {', '.join(near)}" if near else ""
    raise UsageError(f"no run {run}: neither a run's folder nor an id in {runs}{found}")


def all_runs(runs: Path) -> Iterator[RunDir]:
    """Every run in the folder, oldest first."""
    if runs.is_dir():
        for path in sorted(runs.iterdir(), key=lambda p: p.lstat().st_mtime):
            if not path.is_symlink() and _is_run(path):
                yield RunDir(path)


def _is_run(path: Path) -> bool:
    """It has begun, or waits in SLURM's queue."""
    return any(os.path.exists(path / name) for name in ("events.jsonl", "slurm.json"))
