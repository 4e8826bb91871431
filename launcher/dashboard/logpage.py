"""The log view between two looks: whose lines, which of them, and what is on the screen."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from launcher.dashboard import logview
from launcher.dashboard.lines import Line, Look, Span, line
from launcher.dashboard.logfeed import LogLine
from launcher.errors import HostfileError
from launcher.hostfile import host_names
from launcher.nodeset import expand_ranks


class LogPage:
    """What the user has chosen, and the entries that this gives."""

    def __init__(self) -> None:
        self.wanted = logview.Wanted()
        self.only = ""  # ranks or hosts, as they were typed
        self.lines: tuple[LogLine, ...] = ()
        self.entries: list[logview.Entry] = []

    def clear(self) -> None:
        """Nothing has been read yet."""
        self.lines, self.entries = (), []

    def want(self, wanted: logview.Wanted) -> None:
        """Show other lines from now on."""
        self.wanted, self.entries = wanted, []

    def next_level(self) -> logview.Wanted:
        """All lines, then warnings and errors, then errors."""
        at = logview.LEVELS.index(self.wanted.level)
        return replace(self.wanted, level=logview.LEVELS[(at + 1) % len(logview.LEVELS)])

    def draw(self, hosts: Sequence[str], look: Look) -> list[Line]:
        """The lines that are there now."""
        self.entries = logview.entries(self.lines, self.wanted)
        return logview.log_lines(self.entries, hosts, self.wanted, look)

    def tail(self, rows: int) -> list[str]:
        """The newest lines of one rank."""
        return [one.text for one in self.lines[-rows:]]

    def status(self, *, follows: bool) -> Line:
        """What is shown, in one line."""
        wanted = self.wanted
        parts = ["following" if follows else "paused (Space follows)", f"level: {wanted.level}"]
        parts += [f"filter: {wanted.pattern.pattern}"] if wanted.pattern else []
        parts += [f"search: {wanted.search.pattern}"] if wanted.search else []
        parts += [f"only: {self.only}"] if self.only else []
        parts += [] if wanted.folded else ["unfolded"]
        return line(Span(" " + "   ".join(parts), "dim"))

    def hit(self, top: int, by: int) -> int | None:
        """The row of the next match below `top` (1), above it (-1), or of the newest (0)."""
        rows = logview.hits(self.entries, self.wanted.search)
        if not rows:
            return None
        if by == 0:
            return rows[-1]
        if by > 0:
            return next((row for row in rows if row > top), rows[-1])
        return next((row for row in reversed(rows) if row < top), rows[0])


def chosen(text: str, hosts: Sequence[str]) -> tuple[int, ...]:
    """Ranks that a set of ranks or of hosts names; all of them for nothing. Raises HostfileError."""
    if not text:
        return tuple(range(len(hosts)))
    if text[0].isdecimal():
        return tuple(rank for rank in expand_ranks(text) if rank < len(hosts))
    names = set(host_names(text))
    return tuple(rank for rank, host in enumerate(hosts) if host in names or host.rpartition(":")[0] in names)


def why_no_choice(text: str, hosts: Sequence[str]) -> str | None:
    """Why a set of ranks or hosts will not do."""
    try:
        return None if chosen(text.strip(), hosts) else "no rank of this run is among them"
    except HostfileError as error:
        return str(error)


def why_no_pattern(text: str) -> str | None:
    """Why a regular expression will not do."""
    try:
        re.compile(text)
    except re.error as error:
        return f"not a regular expression: {error}"
    return None
