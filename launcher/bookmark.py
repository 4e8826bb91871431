"""bookmark.json: what the first bytes of a run's journal come to, so that no reader has to read a long one whole.

The controller's process writes it now and then (launcher.sinks); a reader starts from it and folds what follows. A run
without one is read from its beginning.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from launcher.chronicle import Chronicle
from launcher.rundir import RunDir, write_atomic
from launcher.state import RunState
from launcher.tempo import Tempo

if TYPE_CHECKING:
    from pydantic import TypeAdapter

VERSION = 1


@dataclass(frozen=True)
class Bookmark:
    """The fold of the journal's first `offset` bytes."""

    version: int
    offset: int
    state: RunState
    chronicle: Chronicle
    tempo: Tempo


def save(run: RunDir, mark: Bookmark) -> int:
    """Write it, whole or not at all; returns its size in bytes. Raises RunFolderError."""
    text = _adapter().dump_json(mark).decode()
    write_atomic(run.bookmark, text)
    return len(text)


def load(run: RunDir) -> Bookmark | None:
    """The run's bookmark, where there is one that fits its journal and this version."""
    from pydantic import ValidationError

    try:
        text = run.bookmark.read_bytes()
        size = run.events.stat().st_size
        mark: Bookmark = _adapter().validate_json(text)
    except (OSError, ValidationError):
        return None
    return (
        mark if mark.version == VERSION and mark.offset <= size and _ends_a_line(run, mark.offset) else None
    )


def _ends_a_line(run: RunDir, offset: int) -> bool:
    with run.events.open("rb") as file:
        file.seek(offset - 1)
        return file.read(1) == b"\n"


@cache
def _adapter() -> TypeAdapter[Any]:
    from pydantic import TypeAdapter  # 0.1 s that reading a short journal does without

    return TypeAdapter(Bookmark)
