"""The thread that reads the run's folder for the dashboard, so that a slow disk never holds up a key."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from launcher.dashboard.logfeed import LogFeed, LogLine
from launcher.errors import RunFolderError
from launcher.follow import Follower, Seen
from launcher.rundir import RunDir

LOOK_S = 1.0
LOGS_LOOK_S = 0.5  # while somebody reads them


@dataclass(frozen=True)
class Logs:
    """Whose output is wanted: ranks of an attempt."""

    attempt: int
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class Looked:
    """What one look gave. lines: of the logs that were asked for; None where nothing has come."""

    seen: Seen
    logs: Logs | None
    lines: tuple[LogLine, ...] | None


class Reader(threading.Thread):
    """Looks once a second, and at once when other logs are asked for. `deliver` is called in this thread."""

    def __init__(
        self, run: RunDir, deliver: Callable[[Looked], None], failed: Callable[[RunFolderError], None]
    ) -> None:
        super().__init__(name="reader", daemon=True)
        self._run_dir, self._deliver, self._failed = run, deliver, failed
        self._wake = threading.Event()
        self._wanted: Logs | None = None
        self._feed: tuple[Logs, LogFeed] | None = None
        self._closed = False

    def want(self, logs: Logs | None) -> None:
        """Read these ranks' output from now on."""
        if logs != self._wanted:
            self._wanted = logs
            self._wake.set()

    def close(self) -> None:
        """Look no more."""
        self._closed = True
        self._wake.set()

    def run(self) -> None:
        """The thread's work."""
        try:
            follower = Follower(self._run_dir)
            while not self._closed:
                follower.news()
                lines = self._read_logs()
                self._deliver(Looked(follower.seen(), self._wanted, lines))
                self._wake.wait(LOOK_S if self._wanted is None else LOGS_LOOK_S)
                self._wake.clear()
        except RunFolderError as error:
            self._failed(error)

    def _read_logs(self) -> tuple[LogLine, ...] | None:
        wanted = self._wanted
        if wanted is None:
            self._feed = None
            return None
        fresh = self._feed is None or self._feed[0] != wanted
        if fresh or self._feed is None:
            self._feed = wanted, LogFeed(self._run_dir, wanted.attempt, wanted.ranks)
        feed = self._feed[1]
        return tuple(feed.lines) if feed.look() or fresh else None
