"""A folder per run on a drive, whose files belong to living processes.

    PATH/distperf-offload-<run id>/rank-00003.state

Whoever made a file holds a lock on it (flock), which ends with the process, however it ends. So a file that can be
locked has lost its owner, and is removed by whichever run looks next; one that cannot stays. Since a file's name may
go between opening and locking it, a lock counts only if the name still leads to the file.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from distperf.errors import OffloadError

PREFIX = "distperf-offload-"
SUFFIX = ".state"


def claim(path: Path) -> int:
    """A descriptor of the file, made if need be and locked for as long as the descriptor is open.

    Raises:
        OffloadError: another process has it.
        OSError: it cannot be made, or locks do not work there.
    """
    while True:
        path.parent.mkdir(mode=0o700, exist_ok=True)
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except FileNotFoundError:
            if path.parent.parent.is_dir():  # the empty folder was removed a moment ago
                continue
            raise
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            raise OffloadError(f"{path} belongs to a process that is still running; end it first") from None
        except OSError:
            os.close(fd)
            raise
        if _leads_to(path, fd):
            return fd
        os.close(fd)


def release(path: Path, fd: int) -> None:
    """Remove a file that this process has claimed, and its folder where it was the last."""
    path.unlink(missing_ok=True)
    os.close(fd)
    with suppress(OSError):  # others' files are in it, or it is gone
        path.parent.rmdir()


def reclaim(drive: Path) -> list[Path]:
    """Remove what processes that are no more have left on a drive; returns what was removed."""
    removed = []
    for path in sorted(drive.glob(f"{PREFIX}*/*{SUFFIX}")):
        with _abandoned(path) as fd:
            if fd is not None:
                path.unlink(missing_ok=True)
                removed.append(path)
    for folder in drive.glob(f"{PREFIX}*"):
        with suppress(OSError):
            folder.rmdir()
    return removed


@contextmanager
def _abandoned(path: Path) -> Iterator[int | None]:
    """A locked descriptor of a file without an owner; None where it has one, or nobody can tell."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        yield None
        return
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield fd if _leads_to(path, fd) else None
    except OSError:
        yield None
    finally:
        os.close(fd)


def _leads_to(path: Path, fd: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(fd))
    except FileNotFoundError:
        return False
