"""What `launch` shows while a run goes: merged logs with host and rank, and how far it is.

On a terminal the last line, with a bar, is redrawn in place; without one, a plain line every few seconds and no control
bytes. Rank output goes to stdout, everything else to stderr.
"""

from __future__ import annotations

import os
import shutil
import statistics
import sys
import time
from collections import deque
from typing import Any, TextIO

from launcher import words
from launcher.logs import Lines, prefix
from launcher.series import RECENT
from launcher.state import Failure, RunState
from launcher.summary import Color, changes, emphasized, inked, live_line, progress_line
from launcher.writer import Writer

REDRAW_S = 0.2
PLAIN_LINE_S = 5.0
CLEAR = "\r\x1b[K"


class Console:
    """A Screen (launcher.screen) on two text streams. verbose: tells every change of ranks and hosts, too."""

    def __init__(
        self,
        quiet: bool,
        out: TextIO | None = None,
        err: TextIO | None = None,
        *,
        verbose: bool = False,
        color: Color = "auto",
    ) -> None:
        self._quiet, self._verbose = quiet, verbose
        self._out = out or sys.stdout
        self._err = err or sys.stderr
        self._inked, self._bold = has_color(self._out, color), has_color(self._err, color)
        self._plain = (getattr(self._err, "encoding", None) or "ascii").lower() not in ("utf-8", "utf8")
        self._live = self._err.isatty() and not quiet
        self._drawn = ""
        self._drawn_at = 0.0
        self._said = ""
        self._writer = Writer()
        self._lines: dict[tuple[int, int], tuple[str, Lines]] = {}
        self._state: RunState | None = None
        self._last: dict[str, Any] = {}
        self._pace: deque[float] = deque(maxlen=RECENT)

    def log(self, host: str, rank: int, data: bytes) -> None:
        """See Screen."""
        if self._quiet or self._state is None:
            return
        key = (self._state.attempt, rank)
        if key not in self._lines:
            widths = max(map(len, self._state.hosts)), len(str(len(self._state.ranks) - 1))
            start = prefix(host, rank, *widths)
            self._lines[key] = inked(start, rank) if self._inked else start, Lines()
        start, lines = self._lines[key]
        if whole := lines.feed(data):
            self._print(self._out, start + f"\n{start}".join(whole) + "\n")

    def metrics(self, line: dict[str, Any]) -> None:
        """See Screen."""
        kept = {key: self._last[key] for key in ("eval_loss",) if key in self._last}  # not every step has one
        if isinstance(line.get("step_s"), float):  # what is left is told by the pace of late, not by one step
            self._pace.append(line["step_s"])
            line = {**line, "step_s": statistics.median(self._pace)}
        self._last = {**kept, **line}

    def state(self, state: RunState) -> None:
        """See Screen."""
        before, self._state = self._state, state
        if before is not None and before.attempt != state.attempt:
            self._pace.clear()
            self._last = {}  # the figures of an attempt that is over would look like progress of this one
        if before is not None and self._verbose and before is not state:
            for change in changes(before, state):
                self.note(change)
        if before is not None and before.state != state.state:
            self._changed(state)
        if before is not None and before.interrupts < 2 <= state.interrupts:
            self.note("ending them now; logs that have not come by then stay on their nodes")
        if (
            before is not None
            and before.failure
            and state.failure
            and before.failure.rank != state.failure.rank
        ):
            self.note(f"{_who(state.failure)}: {state.failure.message}; the others felt it go")
        now = time.monotonic()
        if now - self._drawn_at >= (REDRAW_S if self._live else PLAIN_LINE_S):
            self._drawn_at = now
            self._draw(state)

    def note(self, text: str) -> None:
        """See Screen."""
        self._print(self._err, f"{emphasized('distperf:') if self._bold else 'distperf:'} {text}\n")

    def close(self) -> None:
        """Show last lines without an end and take the progress line away."""
        for start, lines in self._lines.values():
            for line in lines.rest():
                self._print(self._out, f"{start}{line}\n")
        self.clear()
        self._writer.close()

    def clear(self) -> None:
        """Take the progress line away until it is drawn again."""
        if self._drawn:
            self._writer.put(self._err, CLEAR)
            self._drawn = ""
        self._writer.flush()

    def _changed(self, state: RunState) -> None:
        failure = state.failure
        if state.state == "stopping" and failure is not None:
            self.note(f"{_who(failure)}: {failure.message}; ending the other ranks")
        elif state.state == "stalled" and state.stalled is not None:
            self.note(f"stalled: {state.stalled.why}; taking the stacks of all ranks")
        elif state.state == "stopping":
            self.note(
                f"stopping: ranks get SIGTERM and {words.seconds(state.policy.grace_s)}; again to end them now"
            )
        elif state.state == "starting" and state.attempt > 1:
            self.note(f"attempt {state.attempt}")

    def _draw(self, state: RunState) -> None:
        if self._quiet:
            return
        if self._live:
            columns = shutil.get_terminal_size().columns
            self._drawn = live_line(state, self._last, columns, plain=self._plain)
            self._writer.put(self._err, CLEAR + self._drawn)
            return
        line = progress_line(state, self._last)
        if line != self._said:
            self._said = line
            self._writer.put(self._err, f"distperf: {line}\n")

    def _print(self, stream: TextIO, text: str) -> None:
        if self._drawn:
            self._writer.put(self._err, CLEAR)
        self._writer.put(stream, text)
        if self._drawn:
            self._writer.put(self._err, self._drawn)


def _who(failure: Failure) -> str:
    return f"rank {failure.rank} on {failure.host}" if failure.rank is not None else failure.host


def has_color(stream: TextIO, color: Color) -> bool:
    """Whether colours are for this stream: on terminals, unless NO_COLOR or a dumb one says otherwise."""
    if color != "auto":
        return color == "always"
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
