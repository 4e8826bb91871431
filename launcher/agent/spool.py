"""Rank output: to this node's disk first, then to the controller by byte offset.

A rank writes straight into its file, so nothing it wrote is lost with the agent or the link, and a chatty rank
waits for nobody. The agent only looks at file sizes.
"""

import ctypes
import fcntl
import json
import os
import shutil
import tempfile
from typing import Any, Dict, Optional, Tuple

CHUNK_BYTES = 256 << 10
TAIL_BYTES = 32 << 10
TAIL_LINES = 20
BLOCK_BYTES = 4096  # holes are made of whole ones
_libc = ctypes.CDLL(None, use_errno=True)
TRACEBACK = "Traceback (most recent call last):"


class RankLog:
    """One rank's log file and how much of it has been handed on."""

    def __init__(self, folder: str, attempt: int, rank: int, limit_bytes: Optional[int]) -> None:
        self.attempt = attempt
        self.rank = rank
        self.path = os.path.join(folder, "attempt-%d-rank-%05d.log" % (attempt, rank))
        self.write_fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._read_fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        self._sent = 0
        self._limit_bytes = limit_bytes
        self._gone = 0  # bytes at the beginning that were let go
        self.error_file = self.path[: -len(".log")] + "-error.json"
        self.stack_file = self.path[: -len(".log")] + ".stacks"  # made by a rank that answers SIGUSR2

    def next_chunk(self) -> Optional[Tuple[int, bytes]]:
        """(offset, bytes) not handed on yet, or None."""
        start = max(self._sent, self._gone)
        if os.fstat(self._read_fd).st_size <= start:
            return None
        data = os.pread(self._read_fd, CHUNK_BYTES, start)
        self._sent = start + len(data)
        return start, data

    def trim(self) -> None:
        """Let the oldest bytes go, sent or not, once there are more than the limit: half of it stays.

        The rank has the file open, so it is not replaced: its beginning becomes a hole, and no offset changes.
        Raises OSError where the file system makes no holes; the log is whole from then on.
        """
        size = os.fstat(self._read_fd).st_size
        if self._limit_bytes is None or size - self._gone <= self._limit_bytes:
            return
        keep_from = (size - self._limit_bytes // 2) // BLOCK_BYTES * BLOCK_BYTES
        try:
            make_hole(self.write_fd, self._gone, keep_from - self._gone)
        except OSError:
            self._limit_bytes = None
            raise
        self._gone = keep_from

    def unsent(self) -> int:
        """Bytes not handed on."""
        return max(0, os.fstat(self._read_fd).st_size - max(self._sent, self._gone))

    def rewind(self, sent: int) -> None:
        """Hand on again from this offset: what came after it may have been lost on the way."""
        self._sent = min(self._sent, sent)

    def tail(self) -> str:
        """The last lines, for a failure report; with a long traceback at the end, all of it."""
        size = os.fstat(self._read_fd).st_size
        data = os.pread(self._read_fd, TAIL_BYTES, max(0, size - TAIL_BYTES))
        lines = data.decode("utf-8", "replace").rstrip("\n").split("\n")
        if size > TAIL_BYTES:
            lines = lines[1:] or lines  # the first one is cut
        start = max(0, len(lines) - TAIL_LINES)
        if not any(TRACEBACK in line for line in lines[start:]):
            start = next((n for n in range(start, -1, -1) if lines[n].endswith(TRACEBACK)), start)
        return "\n".join(lines[start:])

    def error(self) -> Optional[Dict[str, Any]]:
        """What the rank left in its error file (torchelastic's contract), as a contract `error` record."""
        try:
            with open(self.error_file, "rb") as file:
                message = json.loads(file.read().decode("utf-8", "replace"))["message"]
        except (
            OSError,
            ValueError,
            RecursionError,
            KeyError,
            TypeError,
        ):  # none, or not what it should be: the exit code stands
            return None
        if isinstance(message, dict):
            extra = message.get("extraInfo")
            stack = extra.get("py_callstack") if isinstance(extra, dict) else None
            message = message.get("message", "")
        else:
            stack = None
        kind, _, text = str(message).partition(": ")
        return {"kind": "error", "type": kind, "message": text, "traceback": stack}

    def close(self, keep_unsent: bool = False) -> None:
        """Drop both descriptors and the file, unless it holds what was not handed on and shall be kept."""
        kept = keep_unsent and self.unsent() > 0
        os.close(self.write_fd)
        os.close(self._read_fd)
        if not kept:
            os.unlink(self.path)


def make_hole(fd: int, offset: int, length: int) -> None:
    """Give the blocks in a part of a file back to the disk; they read as zeros. Raises OSError."""
    keep_size_and_punch_hole = 1 | 2
    if _libc.fallocate(fd, keep_size_and_punch_hole, ctypes.c_int64(offset), ctypes.c_int64(length)):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


class Spool:
    """The node's folder for one run's logs; gone when the agent ends."""

    def __init__(self, run_id: str) -> None:
        self.folder = tempfile.mkdtemp(prefix="distperf-%s-" % run_id)  # mode 0700
        self._owned_fd = os.open(self.folder, os.O_RDONLY | os.O_CLOEXEC)
        fcntl.flock(self._owned_fd, fcntl.LOCK_EX)  # falls with this process: without it, left over

    def open(self, attempt: int, rank: int, limit_bytes: Optional[int] = None) -> RankLog:
        """A fresh log, of which no more than limit_bytes are kept here. Raises OSError when the node's disk refuses."""
        return RankLog(self.folder, attempt, rank, limit_bytes)

    def put(self, name: str, text: str) -> str:
        """A file of the agent's own; its path."""
        path = os.path.join(self.folder, name)
        with open(path, "w") as file:
            file.write(text)
        return path

    def remove(self, keep_logs: bool = False) -> None:
        """Remove the folder with all that is in it, or all but logs that are still there."""
        for name in os.listdir(self.folder) if keep_logs else ():
            if not (name.startswith("attempt-") and name.endswith(".log")):
                os.unlink(os.path.join(self.folder, name))
        if not keep_logs or not os.listdir(self.folder):
            shutil.rmtree(self.folder, ignore_errors=True)
        os.close(self._owned_fd)


def unowned(folder: str) -> bool:
    """Whether a folder is this user's and its agent is gone: a living one holds a lock on it."""
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        if os.fstat(fd).st_uid != os.getuid():
            return False
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(fd)
    return True
