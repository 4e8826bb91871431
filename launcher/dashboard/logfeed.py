"""Rank logs as they grow, for the screen: the newest lines of the chosen ranks, merged as they come."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from launcher.logfiles import Tail
from launcher.logs import Lines
from launcher.rundir import RunDir

KEPT_LINES = 4000  # on the screen; the files have all
FAR_BEHIND = 1 << 18  # bytes of one rank between two looks; whoever writes more is taken up at the end


@dataclass(frozen=True)
class LogLine:
    """A line that a rank wrote. look: lines of one look came at about the same time."""

    look: int
    rank: int
    text: str


class _Log:
    """One rank's log: its newest part, as it was at the last look, and the lines of it."""

    def __init__(self, path: Path, lines: int) -> None:
        self._tail, self._lines, self._keep = Tail(path), Lines(), lines
        self.inode, self.size = 0, -1

    def new(self, inode: int, size: int) -> list[str]:
        """Lines that have come; the first time, and when far more have than anybody reads, the last ones."""
        told, far = [], inode == self.inode and size - self.size > FAR_BEHIND
        if self.size < 0 or far:
            self._tail.skip(self._keep)
            self._lines = Lines()
            told = ["... output is left out here; the log has it"] if self.size >= 0 else []
        self.inode, self.size = inode, size
        while data := self._tail.new():
            told += self._lines.feed(data)
        return told


class LogFeed:
    """The merged newest lines of some ranks of one attempt."""

    def __init__(self, run: RunDir, attempt: int, ranks: Sequence[int], lines: int = KEPT_LINES // 2) -> None:
        self._folder = run.logs(attempt)
        each = max(4, lines // max(1, len(ranks)))
        self._logs = {
            run.log(attempt, rank).name: (rank, _Log(run.log(attempt, rank), each)) for rank in ranks
        }
        self._look = 0
        self.lines: deque[LogLine] = deque(maxlen=KEPT_LINES)

    def look(self) -> bool:
        """Take in what has come; says whether anything has."""
        self._look += 1
        found = False
        for name, inode, size in self._grown():
            rank, log = self._logs[name]
            for text in log.new(inode, size):
                found = True
                self.lines.append(LogLine(self._look, rank, text))
        return found

    def _grown(self) -> list[tuple[str, int, int]]:
        """Name, inode and size of logs that are not as they were, by rank."""
        try:
            with os.scandir(self._folder) as entries:
                now = [(e.name, e.inode(), e.stat().st_size) for e in entries if e.name in self._logs]
        except OSError:  # no rank has been started yet
            return []
        before = {name: (log.inode, log.size) for name, (_, log) in self._logs.items()}
        return sorted((name, inode, size) for name, inode, size in now if before[name] != (inode, size))
