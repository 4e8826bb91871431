"""metrics.jsonl as curves: the newest lines, and as many points of the whole as a picture needs.

A long run's file is never read whole: where it is large it is looked into at even distances, and followed from its end.
"""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MAX_POINTS = 1024
RECENT = 20  # steps that speed and time left are told from
WHOLE_BYTES = 1 << 19  # a file up to this size is read whole
PEEKS = 400  # where a larger one is looked into
PEEK_BYTES = 4096

Line = dict[str, Any]


class Series:
    """The steps of a run, thinned, newest exact. A restart replaces the file: then everything is read anew."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = (0, 0)  # device and inode
        self._offset = 0
        self._stride = 1  # steps between points
        self.points: list[Line] = []  # by step, at most MAX_POINTS, evenly far apart
        self.recent: deque[Line] = deque(maxlen=RECENT)  # the newest, each step
        self.new()

    @property
    def last(self) -> Line:
        """The newest line; empty before the first."""
        return self.recent[-1] if self.recent else {}

    def new(self) -> list[Line]:
        """Lines that have come since the last call (after a restart, none but the newest)."""
        try:
            with self._path.open("rb") as file:
                found = os.fstat(file.fileno())
                if (found.st_dev, found.st_ino) != self._file or found.st_size < self._offset:
                    self._file = (found.st_dev, found.st_ino)
                    lines = self._read_anew(file.fileno(), found.st_size)
                elif found.st_size == self._offset:
                    return []
                else:
                    lines = self._read_on(file.fileno(), found.st_size)
        except OSError:  # no step is finished yet, or the folder is out of reach just now
            return []
        for line in lines:
            self._take(line)
        return lines

    def _read_anew(self, fd: int, size: int) -> list[Line]:
        self.points, self._offset, self._stride = [], 0, 1
        self.recent.clear()
        if size > WHOLE_BYTES:
            self.points = list(_peek(fd, size))
            self._stride = max(1, (self.points[-1]["step"] if self.points else 0) // PEEKS)
            self._offset = _line_start(fd, size - WHOLE_BYTES // 4)
        lines = self._read_on(fd, size)
        if lines:  # what was peeked at in the part that is read whole
            self.points = [p for p in self.points if p["step"] < lines[0]["step"]]
        return lines

    def _read_on(self, fd: int, size: int) -> list[Line]:
        data = os.pread(fd, size - self._offset, self._offset)
        data = data[: data.rfind(b"\n") + 1]
        self._offset += len(data)
        return [line for raw in data.splitlines() if (line := _step(raw)) is not None]

    def _take(self, line: Line) -> None:
        self.recent.append(line)
        if line["step"] % self._stride:
            return
        self.points.append(line)
        if len(self.points) > MAX_POINTS:
            self._stride *= 2
            self.points = [point for point in self.points if point["step"] % self._stride == 0]


def _peek(fd: int, size: int) -> Iterator[Line]:
    """Whole lines at even distances, in order."""
    newest = -1
    for at in range(0, size, max(1, size // PEEKS)):
        data = os.pread(fd, PEEK_BYTES, at)
        pieces = data.split(b"\n")
        whole = pieces[0] if at == 0 else pieces[1] if len(pieces) > 2 else b""
        line = _step(whole)
        if line is not None and line["step"] > newest:
            newest = line["step"]
            yield line


def _line_start(fd: int, near: int) -> int:
    data = os.pread(fd, PEEK_BYTES, near)
    return near + data.find(b"\n") + 1


def _step(raw: bytes) -> Line | None:
    """A line of metrics that names its step."""
    try:
        line = json.loads(raw)
    except ValueError:
        return None
    return line if isinstance(line, dict) and isinstance(line.get("step"), int) else None


def numbers(points: list[Line] | tuple[Line, ...], name: str) -> list[tuple[float, float]]:
    """(step, value) of one metric, where it is a number."""
    return [
        (float(p["step"]), float(p[name]))
        for p in points
        if isinstance(p.get(name), (int, float)) and not isinstance(p[name], bool)
    ]
