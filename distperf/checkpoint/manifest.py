"""What a checkpoint folder says about itself. No torch: the launcher reads it.

DIR/step-00000050/            a checkpoint; it gets this name only when everything below is on disk
    __0_0.distcp ...          the ranks' shards and
    index.json                where each tensor's pieces lie in them
    .metadata                 the same for other tools (torch.distributed.checkpoint's format)
    manifest.json             what it is, how long every file is, and the hashes of its blocks; written last
DIR/.step-00000050.partial-2-1f3870be    being written by attempt 2 of the run with that tag
DIR/latest                    symlink to the newest
DIR/best                      symlink to the best by checkpoint.keep_best, where there is one
DIR/.attempt-1f3870be         which attempt of the run with that tag may write here

The first line of manifest.json holds the hash of all that follows, so that damage to it is found before anything in it
is believed.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from distperf.checkpoint.blocks import BLOCK_BYTES, HASH, FileSum, hash_of
from distperf.checkpoint.writing import HashingWriter
from distperf.errors import CheckpointCorrupt, CheckpointError, CheckpointMissing
from distperf.version import __version__

MANIFEST = "manifest.json"
MANIFEST_SCHEMA = 2
LATEST = "latest"
BEST = "best"

_STEP_NAME = re.compile(r"step-(\d{8,})")
_HIDDEN_NAME = re.compile(r"\.step-\d{8,}\.(?:partial|removing)-\d+-([0-9a-f]{8})")


@dataclass(frozen=True)
class Origin:
    """Who writes a checkpoint. `model` is the spec of its model as a dict."""

    run_id: str
    name: str
    attempt: int
    world_size: int
    model: dict[str, Any]
    precision: str
    zero: int
    data: dict[str, Any]  # a DataOrigin


@dataclass(frozen=True)
class Position:
    """Where training is: what a checkpoint holds beside tensors."""

    step: int
    optimizer_step: int
    tokens: int  # valid targets trained on so far
    samples: int  # of the endless stream, trained on so far: where the next step begins
    loss_scale: dict[str, Any] | None = None  # of fp16: the next step's LossScale
    data_state: Any = None  # of a dataset of the user's: what it said of itself after those samples
    metrics: dict[str, float] = dataclasses.field(
        default_factory=dict
    )  # of this step: loss, eval_loss where it had one


@dataclass(frozen=True)
class Manifest(Origin):
    """A checkpoint's manifest.json: its Origin, its Position, and what it consists of.

    `files`: all files but itself, by name.
    """

    schema: int
    step: int
    optimizer_step: int
    tokens: int
    samples: int
    loss_scale: dict[str, Any] | None
    files: dict[str, FileSum]
    hash: str  # of the blocks: xxh3-128
    block_bytes: int
    created: str  # UTC, ISO 8601
    distperf: str
    torch: str
    data_state: Any = None
    metrics: dict[str, float] = dataclasses.field(default_factory=dict)

    @property
    def size_bytes(self) -> int:
        """Bytes of all files but the manifest."""
        return sum(sums.bytes for sums in self.files.values())


@dataclass(frozen=True)
class CheckpointInfo:
    """One step folder as found. `problem` says why it cannot be loaded; None when it is complete."""

    path: Path
    step: int
    manifest: Manifest | None
    problem: str | None

    @property
    def complete(self) -> bool:
        """Manifest there, and every file as long as it says."""
        return self.problem is None

    @property
    def size_bytes(self) -> int:
        """Bytes on disk, by the manifest; 0 without one."""
        return self.manifest.size_bytes if self.manifest else 0

    def by(self, run_id: str) -> bool:
        """True when this run wrote it."""
        return self.manifest is not None and self.manifest.run_id == run_id


def step_name(step: int) -> str:
    """Folder name of the checkpoint after `step`."""
    return f"step-{step:08d}"


def is_step_name(name: str) -> bool:
    """Whether a folder of this name is a checkpoint, or was to be one."""
    return _STEP_NAME.fullmatch(name) is not None


def hidden_name(step: int, kind: str, attempt: int, run_id: str) -> str:
    """Name of a folder that no reader looks at: `kind` is partial (being written) or removing."""
    return f".{step_name(step)}.{kind}-{attempt}-{_tag(run_id)}"


def _tag(run_id: str) -> str:
    return hashlib.sha256(run_id.encode()).hexdigest()[:8]


def claim(folder: Path, run_id: str, attempt: int) -> None:
    """From now on no earlier attempt of the run makes checkpoints in `folder`: see `newest_attempt`. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    fresh = folder / f".attempt-{_tag(run_id)}.{attempt}"
    fresh.write_text(f"{attempt}\n")
    fresh.replace(folder / f".attempt-{_tag(run_id)}")


def newest_attempt(folder: Path, run_id: str) -> int:
    """The newest attempt that has claimed `folder`; 1 where none has. Raises OSError, ValueError."""
    try:
        return int((folder / f".attempt-{_tag(run_id)}").read_text())
    except FileNotFoundError:
        return 1


def leftovers(folder: Path, run_id: str) -> list[Path]:
    """Folders that an attempt of this run left half written or half removed."""
    found = ((path, _HIDDEN_NAME.fullmatch(path.name)) for path in _entries(folder))
    return [path for path, match in found if match and match[1] == _tag(run_id)]


def list_checkpoints(folder: str | os.PathLike[str]) -> list[CheckpointInfo]:
    """Every step folder in `folder`, oldest step first (by number, not by name); empty when there is none.

    Raises:
        CheckpointError: `folder` is there but cannot be listed.
    """
    found = ((path, _STEP_NAME.fullmatch(path.name)) for path in _entries(Path(folder)))
    steps = [(int(match[1]), path) for path, match in found if match]
    return [inspect(path) for _, path in sorted(steps)]


def best_name(folder: Path) -> str | None:
    """Name of the checkpoint in `folder` that `best` points to, if any does."""
    try:
        return os.readlink(folder / BEST)
    except OSError:
        return None


def _entries(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except FileNotFoundError:
        return []
    except OSError as error:
        raise CheckpointError(f"{folder}: cannot list checkpoints: {error.strerror}") from error


def inspect(path: Path) -> CheckpointInfo:
    """Look at one checkpoint folder: reads its manifest and compares the sizes of all its files."""
    match = _STEP_NAME.fullmatch(path.name)
    try:
        manifest = read_manifest(path)
    except CheckpointError as error:
        return CheckpointInfo(path, int(match[1]) if match else -1, None, str(error))
    return CheckpointInfo(path, manifest.step, manifest, _damage(path, manifest.files))


def _damage(path: Path, files: dict[str, FileSum]) -> str | None:
    for name, sums in sorted(files.items()):
        try:
            found = (path / name).stat().st_size
        except OSError as error:
            return f"{path / name}: {error.strerror}"
        if found != sums.bytes:
            return f"{path / name}: {found} bytes, {sums.bytes} were written"
    return None


def read_manifest(path: str | os.PathLike[str]) -> Manifest:
    """Read a checkpoint folder's manifest.

    Raises:
        CheckpointMissing: no manifest there: not a checkpoint.
        CheckpointCorrupt: it is not what was written, or cannot be read.
        CheckpointError: it was written by a newer distperf.
    """
    file = Path(path) / MANIFEST
    try:
        text = file.read_bytes()
    except FileNotFoundError as error:
        raise CheckpointMissing(f"{path}: not a checkpoint: it holds no {MANIFEST}") from error
    except OSError as error:
        raise CheckpointCorrupt(f"{file}: cannot be read: {error.strerror}", MANIFEST) from error
    head, _, body = text.partition(b"\n")
    if head != _seal(body):
        raise CheckpointCorrupt(
            f"{file}: not what was written: its first line does not hold hash of the rest", MANIFEST
        )
    fields = json.loads(text)
    if fields.get("schema") != MANIFEST_SCHEMA:
        raise CheckpointError(f"{file}: schema {fields.get('schema')}; this distperf reads {MANIFEST_SCHEMA}")
    return manifest_of(fields)


def manifest_of(fields: dict[str, Any]) -> Manifest:
    """A manifest from plain JSON values. Raises CheckpointError where some are missing."""
    known, later = dataclasses.fields(Manifest), {"data_state", "metrics"}
    if missing := {field.name for field in known} - later - fields.keys():
        raise CheckpointError(f"{MANIFEST}: lacks {', '.join(sorted(missing))}")
    given = {field.name: fields[field.name] for field in known if field.name in fields}
    return Manifest(**{**given, "files": file_sums(fields["files"])})


def new_manifest(
    origin: Origin, position: Position, files: dict[str, FileSum], *, torch: str, created: str
) -> Manifest:
    """The manifest of what was just written. `torch`: its version."""
    return Manifest(
        **dataclasses.asdict(origin),
        **dataclasses.asdict(position),
        schema=MANIFEST_SCHEMA,
        files=files,
        hash=HASH,
        block_bytes=BLOCK_BYTES,
        created=created,
        distperf=__version__,
        torch=torch,
    )


def now() -> str:
    """The time, as manifests say it."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def file_sums(files: dict[str, Any]) -> dict[str, FileSum]:
    """`files` of a manifest from plain JSON values."""
    return {name: FileSum(sums["bytes"], tuple(sums["blocks"])) for name, sums in files.items()}


def _seal(body: bytes) -> bytes:
    """The first line of a manifest: its own checksum."""
    return f'{{"checksum": "{hash_of(body)}",'.encode()


def write_manifest(path: Path, manifest: Manifest) -> None:
    """Write manifest.json into a folder, and force it to disk."""
    text = json.dumps(dataclasses.asdict(manifest), indent=1, sort_keys=True)
    body = text.removeprefix("{\n").encode()
    with HashingWriter(path / MANIFEST) as file:
        file.write(_seal(body) + b"\n" + body)
        file.finish()
