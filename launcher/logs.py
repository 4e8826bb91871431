"""Rank output on the controller's side: every byte into its file, whole lines to the merged view."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from launcher.rundir import RunDir

MAX_LINE_BYTES = 4096  # of one line on the screen; the file has all of it
READ_BYTES = 1 << 16
_CONTROL = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|[\x00-\x08\x0b-\x1f\x7f\x80-\x9f]|\x1b.?"
)


class LogFiles:
    """The open rank logs of one attempt."""

    def __init__(self, run: RunDir, attempt: int, ranks: int) -> None:
        self._paths = {rank: run.log(attempt, rank) for rank in range(ranks)}
        run.logs(attempt).mkdir(parents=True, exist_ok=True)
        for path in self._paths.values():  # a rank that says nothing has an empty log, not none
            path.touch(mode=0o600)

    def write(self, rank: int, offset: int, data: bytes) -> None:
        """Put the bytes where they belong: what is sent twice after a lost link lands once. Raises OSError."""
        with self._paths[rank].open("r+b") as file:
            file.seek(offset)
            file.write(data)


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


class Tail:
    """A log file that grows, and how far it was read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def skip(self, lines: int) -> None:
        """Pass over everything but the last lines that are there now (or what the last 64 KiB hold of them)."""
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
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                data = file.read(READ_BYTES)
        except FileNotFoundError:
            return b""
        self._offset += len(data)
        return data
