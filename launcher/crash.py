"""What a Python program says as it dies: the uncaught exception at the end of its output. Pure; any text will do."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

UNCAUGHT = 1  # what Python exits with after a traceback
NO_PROGRAM = 2  # ... and when it cannot open the file that it is to run
MAX_MESSAGE_LINES = 10

_RANK_MARK = re.compile(
    r"^\[rank\d+\]: ?"
)  # torch puts it before the tracebacks of a process group's members
_HEADER = "Traceback (most recent call last):"
_FRAME = re.compile(r'  File "(?P<file>[^"]+)", line (?P<line>\d+)(?:, in (?P<name>.+))?$')
_EXCEPTION = re.compile(r"(?P<kind>[A-Za-z_][\w.]*)(?:: (?P<message>.*))?$")
_SYNTAX_ERRORS = ("SyntaxError", "IndentationError", "TabError")
_NOT_THE_END = re.compile(
    r"Exception (ignored )?in\b"
)  # a destructor's or another thread's: the program went on
_NOT_OURS = re.compile(r"/(site|dist)-packages/|/lib/python[\d.]+/|^<")
_NEVER_BEGUN = re.compile(r"\S+: (?P<text>can't open file .*|No module named (?P<module>\S+))$")


@dataclass(frozen=True)
class Crash:
    """kind is the exception's class without its module; place: `train.py:12 in main`, "" where unknown."""

    kind: str
    message: str
    place: str
    traceback: str | None

    def __str__(self) -> str:
        where = f" ({self.place})" if self.place else ""
        return f"{self.kind}: {self.message}{where}" if self.message else f"{self.kind}{where}"


def crash_in(text: str, exit_code: int | None) -> Crash | None:
    """What a process that ended with this code died of, when it was Python and its last output tells."""
    lines = [_RANK_MARK.sub("", line).rstrip("\r") for line in text.split("\n")]
    if exit_code == NO_PROGRAM:
        return _never_begun(lines)
    if exit_code != UNCAUGHT:  # sys.exit(3) after a traceback that the program itself has logged
        return None
    found = (_read(lines[start:]) for start in reversed(list(_beginnings(lines))))
    return next(filter(None, found), None) or _never_begun(lines)


def _beginnings(lines: list[str]) -> Iterator[int]:
    """Lines with which a traceback may begin; a program's own syntax error is shown without a header."""
    for number, line in enumerate(lines):
        before = lines[number - 1] if number else ""
        bare = (frame := _FRAME.match(line)) is not None and frame["name"] is None
        after_frames = before.startswith("    ") or before == _HEADER
        if (line == _HEADER or (bare and not after_frames)) and not _NOT_THE_END.match(before):
            yield number


def _read(lines: list[str]) -> Crash | None:
    """The exception of a traceback that begins with the first line."""
    end = next((n for n, line in enumerate(lines) if n and not line.startswith("  ")), None)
    found = _EXCEPTION.match(lines[end]) if end is not None else None
    if end is None or found is None:
        return None
    kind = found["kind"].rpartition(".")[2]
    if lines[0] != _HEADER and kind not in _SYNTAX_ERRORS:
        return None
    frames = [frame for frame in map(_FRAME.match, lines[:end]) if frame]
    message = found["message"] or next(iter(lines[end + 1 :]), "")
    return Crash(kind, message.strip(), _place(frames), "\n".join(lines[: end + MAX_MESSAGE_LINES]))


def _place(frames: list[re.Match[str]]) -> str:
    """The innermost frame of the user's own code, or of any where none is."""
    own = [frame for frame in frames if not _NOT_OURS.search(frame["file"])] or frames
    if not own:
        return ""
    frame = own[-1]
    name = f" in {frame['name']}" if frame["name"] and frame["name"] != "<module>" else ""
    return f"{frame['file'].rpartition('/')[2]}:{frame['line']}{name}"


def _never_begun(lines: list[str]) -> Crash | None:
    """The interpreter's own line when there is no such program: `python: can't open file ...`."""
    last = next((line for line in reversed(lines) if line.strip()), "")
    found = _NEVER_BEGUN.match(last)
    if found is None:
        return None
    kind = "ModuleNotFoundError" if found["module"] else "FileNotFoundError"
    return Crash(kind, found["text"], "", None)
