"""Follows a run from a thread of its controller's process, and feeds what the recipe's report section names.

Nothing that goes wrong here touches the run: it is said, and the rest goes on.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from distperf.recipe.reporting import ReportSection
from launcher.errors import LauncherError, RunFolderError
from launcher.follow import Follower, Seen
from launcher.rundir import RunDir
from launcher.series import Line
from launcher.sinks.exposition import exposition
from launcher.sinks.messages import Message, messages
from launcher.sinks.tensorboard import EventFile

LOOK_S = 1.0
END_LIMIT_S = 70.0  # a command and a web address may take as long as they may

Say = Callable[[str], None]


@contextmanager
def feeding(run: RunDir, report: ReportSection, say: Say, look_s: float = LOOK_S) -> Iterator[None]:
    """While the run goes; at the end, its end is told before this returns."""
    hooked = [hook for hook in (_command(report.command), _webhook(report.webhook)) if hook is not None]
    if report.prometheus is None and not hooked and not report.tensorboard:
        yield
        return
    feeder = Feeder(run, hooked, say, tensorboard=report.tensorboard)
    with ExitStack() as stack:
        if report.prometheus is not None:
            from launcher.sinks.endpoint import Endpoint  # web servers and clients are 0.1 s of imports

            try:
                endpoint = Endpoint(report.prometheus, feeder.text)
            except OSError as error:
                say(f"warning: no metrics for Prometheus at {report.prometheus}: {error.strerror or error}")
            else:
                stack.callback(endpoint.close)
                say(f"metrics for Prometheus at {endpoint.url}")
        thread = threading.Thread(target=feeder.work, args=(look_s,), name="sinks", daemon=True)
        thread.start()
        try:
            yield
        finally:
            feeder.over.set()
            thread.join(END_LIMIT_S)


Hook = Callable[[Message], None]


def _command(line: str | None) -> Hook | None:
    if line is None:
        return None
    from launcher.sinks.hooks import run_command

    return lambda message: run_command(line, message)


def _webhook(url: str | None) -> Hook | None:
    if url is None:
        return None
    from launcher.sinks.hooks import post

    return lambda message: post(url, message)


class Feeder:
    """Looks once a second while there is a run to look at."""

    def __init__(self, run: RunDir, hooked: list[Hook], say: Say, *, tensorboard: bool) -> None:
        self._run, self._hooked, self._say, self._tensorboard = run, hooked, say, tensorboard
        self._curves: EventFile | None = None
        self._follower: Follower | None = None
        self._seen: Seen | None = None
        self._trouble = ""
        self.over = threading.Event()

    def text(self) -> str:
        """What Prometheus is told."""
        return "" if self._seen is None else exposition(self._seen)

    def work(self, look_s: float) -> None:
        """The thread's work: one look more after the run is over, so that its end is told."""
        while True:
            last = self.over.wait(look_s)
            try:
                self._look()
            except RunFolderError as error:  # not begun yet, or out of reach just now
                if self._follower is not None:
                    self._complain(str(error))
            if last:
                return

    def _look(self) -> None:
        follower = self._follower = self._follower or Follower(self._run)
        _, lines = follower.news()
        before, self._seen = self._seen, follower.seen()
        if self._tensorboard:
            earlier = self._seen.state.attempts_before
            first = [line for line in self._seen.points if int(line.get("attempt") or 0) > earlier]
            self._draw(first if before is None else lines)
        for message in messages(before, self._seen):
            for hook in self._hooked:
                try:
                    hook(message)
                except LauncherError as error:
                    self._complain(str(error))

    def _draw(self, lines: list[Line]) -> None:
        """Add steps to the curves; a disk that refuses ends them."""
        now = time.time()
        try:
            self._curves = self._curves or EventFile(self._run.tensorboard, now)
            self._curves.write(lines, now)
        except OSError as error:
            self._tensorboard = False
            self._complain(f"no curves for TensorBoard any more: {error}")

    def _complain(self, trouble: str) -> None:
        """The same trouble once."""
        if trouble != self._trouble:
            self._trouble = trouble
            self._say(f"warning: {trouble}")
