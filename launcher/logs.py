"""Rank output as people see it: whole lines, safe on a terminal, with host and rank before them."""

from __future__ import annotations

import re
from collections.abc import Iterator

MAX_LINE_BYTES = 4096  # of one line on the screen; the file has all of it
_CONTROL = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|[\x00-\x08\x0b-\x1f\x7f\x80-\x9f]|\x1b.?"
)


class Lines:
    """Cuts one rank's bytes into screen lines: whole, one state of a progress bar, nothing that moves a cursor."""

    def __init__(self) -> None:
        self._partial = b""

    def feed(self, data: bytes) -> list[str]:
        """Lines that are complete now."""
        whole, found, rest = (self._partial + data).rpartition(b"\n")
        self._partial = rest
        lines = _printable_lines(whole) if found else []
        if len(rest) > MAX_LINE_BYTES and b"\r" in rest:
            self._partial = rest[rest.rindex(b"\r") :]  # the last state of a bar counts
        if len(self._partial) > 16 * MAX_LINE_BYTES:
            lines.append(printable(self._partial))
            self._partial = b""
        return lines

    def rest(self) -> Iterator[str]:
        """A last line without an end."""
        if self._partial:
            yield printable(self._partial)
            self._partial = b""


def _printable_lines(data: bytes) -> list[str]:
    """Lines of whole ones, each as `printable` gives it. Most output is plain, and seen to be so at once."""
    text = data.decode("utf-8", "replace")
    if text.replace("\n", "").isprintable():
        lines = text.split("\n")
        if max(map(len, lines)) <= MAX_LINE_BYTES:
            return lines
    return [printable(line) for line in data.split(b"\n")]


def printable(line: bytes) -> str:
    """One line as it is safe and useful on a terminal: last state of a bar, no escapes, bad bytes marked."""
    text = line.decode("utf-8", "replace")
    if text.isprintable() and len(text) <= MAX_LINE_BYTES:
        return text
    states = [state for state in line.split(b"\r") if state.strip()]
    text = (states[-1] if states else b"").decode("utf-8", "replace").expandtabs()
    text = _CONTROL.sub("", text)
    if len(text) > MAX_LINE_BYTES:
        text = f"{text[:MAX_LINE_BYTES]} ... ({len(text)} characters; all of them are in the rank's log)"
    return text


def printable_lines(text: str) -> list[str]:
    """Lines of a text that came from a rank, safe on a terminal."""
    return [printable(line) for line in text.rstrip().encode("utf-8", "replace").split(b"\n")]


def prefix(host: str, rank: int, host_width: int, rank_width: int) -> str:
    """What stands before a merged line: host and rank."""
    return f"{host:<{host_width}} {rank:>{rank_width}} | "
