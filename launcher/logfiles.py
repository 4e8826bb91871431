"""Rank output on the controller's disk: every byte into its rank's file, and read again while it grows.

With launch.log_limit_bytes a log has two parts, `rank-00000.log.1` and after it `rank-00000.log`: when the newer one
has grown to half of the limit, it becomes the older one, and the older one goes. The first name is a symlink to a file
whose name counts the parts: by it a reader that is slower than the rank knows where it is.
"""

from __future__ import annotations

import os
from pathlib import Path

from launcher.rundir import RunDir

READ_BYTES = 1 << 16
MISSING = "[distperf: {:,} bytes are missing here: the node let them go (launch.log_limit_bytes) before they were sent]"
MISSED = b"\n[distperf: output is missing here: it was let go (launch.log_limit_bytes) before it was shown]\n"


def older(log: Path) -> Path:
    """The part of a log that comes before the one that grows, where there is one."""
    return log.with_name(f"{log.name}.1")


class LogFiles:
    """The rank logs of one attempt, as they arrive."""

    def __init__(self, run: RunDir, attempt: int, ranks: int, limit_bytes: int | None = None) -> None:
        self._paths = {rank: run.log(attempt, rank) for rank in range(ranks)}
        self._limit_bytes = limit_bytes
        self._ends = dict.fromkeys(self._paths, 0)  # offsets up to which output has arrived
        self._numbers = dict.fromkeys(self._paths, 0)  # parts that were made so far
        run.logs(attempt).mkdir(parents=True, exist_ok=True)
        for path in self._paths.values():  # a rank that says nothing has an empty log, not none
            path.touch(mode=0o640)

    def write(self, rank: int, offset: int, data: bytes) -> None:
        """Add what is new: what is sent twice after a lost link lands once. Raises OSError."""
        path, end = self._paths[rank], self._ends[rank]
        new = data[max(0, end - offset) :]
        if not new:
            return
        self._ends[rank] = offset + len(data)
        if offset > end:
            new = b"\n" + MISSING.format(offset - end).encode() + b"\n" + new
        if self._limit_bytes is not None:
            self._rotate(rank, len(new), self._limit_bytes // 2)
        with path.open("r+b") as file:  # a file that somebody has removed is not made again
            file.seek(0, 2)
            file.write(new)

    def _rotate(self, rank: int, more: int, most: int) -> None:
        """Make what there is the older part. In this order, a reader that sees the same link before and after it has
        read knows what it has read.
        """
        path = self._paths[rank]
        size = path.stat().st_size
        if not size or size + more <= most:
            return
        number = self._numbers[rank] = self._numbers[rank] + 1
        part, link = _part(path, number), path.with_name(f".{path.name}.1")
        path.replace(part)
        link.symlink_to(part.name)
        link.replace(older(path))
        path.touch(mode=0o640)
        _part(path, number - 1).unlink(missing_ok=True)


def _part(log: Path, number: int) -> Path:
    return log.with_name(f"{log.stem}.part-{number}.log")


class Tail:
    """A log that grows, in its parts, and how far it was read. No file stays open: a run may have thousands."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._number: int | None = None  # of the part that is being read, from 1

    def skip(self, lines: int) -> None:
        """Pass over everything but the last lines of the newest part (or what its last 64 KiB hold of them)."""
        self._number = self._older_number() + 1
        try:
            with self._path.open("rb") as file:
                start = max(0, file.seek(0, 2) - READ_BYTES)
                file.seek(start)
                data = file.read()
        except FileNotFoundError:
            return
        at = len(data)
        for _ in range(lines + 1):  # the newest line has an end, or is still being written
            at = data.rfind(b"\n", 0, at)
            if at < 0:
                break
        self._offset = start + at + 1 if at >= 0 or start == 0 else start + data.find(b"\n") + 1

    def new(self) -> bytes:
        """What has come since, up to 64 KiB; b"" when nothing has."""
        while True:
            before = self._older_number()
            self._number = self._number or max(1, before)
            if self._number < before:
                self._number, self._offset = before, 0
                return MISSED
            data = self._read(older(self._path) if self._number == before else self._path)
            if self._older_number() != before:
                continue  # what was read may be another part by now
            if not data and self._number == before:
                self._number, self._offset = before + 1, 0
                continue
            self._offset += len(data)
            return data

    def _read(self, path: Path) -> bytes:
        try:
            with path.open("rb") as file:
                file.seek(self._offset)
                return file.read(READ_BYTES)
        except FileNotFoundError:
            return b""

    def _older_number(self) -> int:
        """Number of the part before the newest; 0 where the log is whole."""
        try:
            return int(os.readlink(older(self._path)).split(".part-")[1].split(".")[0])
        except FileNotFoundError:
            return 0
