"""Log lines as a view: filtered, equal ones folded over ranks, matches marked. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from launcher.dashboard.lines import Line, Look, Span, line, safe
from launcher.dashboard.logfeed import LogLine
from launcher.nodeset import fold_numbers

LEVELS = ("all", "warnings", "errors")
_ERROR = re.compile(r"\b(ERROR|CRITICAL|FATAL|Traceback)\b|\b\w*(Error|Exception)\b:?", re.ASCII)
_WARNING = re.compile(r"\bWARN(ING)?\b", re.IGNORECASE | re.ASCII)


@dataclass(frozen=True)
class Wanted:
    """Which lines are shown, and how."""

    level: str = "all"
    pattern: re.Pattern[str] | None = None  # only lines that match
    search: re.Pattern[str] | None = None  # matches are marked, and can be gone to
    folded: bool = True


@dataclass(frozen=True)
class Entry:
    """A line, and the ranks that wrote it at about the same time."""

    text: str
    ranks: tuple[int, ...]
    times: int = 1


def severity(text: str) -> int:
    """2: an error, 1: a warning, 0: neither, as far as its words tell."""
    if _ERROR.search(text):
        return 2
    return 1 if _WARNING.search(text) else 0


def entries(lines: Iterable[LogLine], wanted: Wanted) -> list[Entry]:
    """The lines that are wanted, equal ones of one look folded."""
    least = LEVELS.index(wanted.level)
    chosen = [
        one
        for one in lines
        if (least == 0 or severity(one.text) >= least)
        and (wanted.pattern is None or wanted.pattern.search(one.text))
    ]
    return _folded(chosen) if wanted.folded else [Entry(one.text, (one.rank,)) for one in chosen]


def _folded(lines: Sequence[LogLine]) -> list[Entry]:
    groups: dict[tuple[int, str], list[int]] = {}
    for one in lines:
        groups.setdefault((one.look, one.text), []).append(one.rank)
    return [
        Entry(text, tuple(sorted(set(ranks))), -(-len(ranks) // len(set(ranks))))
        for (_, text), ranks in groups.items()
    ]


def log_lines(found: Sequence[Entry], hosts: Sequence[str], wanted: Wanted, look: Look) -> list[Line]:
    """The view. hosts: the host of each rank."""
    heads = [_head(entry, hosts, look) for entry in found]
    room = min(30, max(map(len, heads), default=0))
    tones = ("text", "warn", "bad")
    lines = []
    for entry, head in zip(found, heads, strict=True):
        target = f"rank {entry.ranks[0]}"
        text = safe(entry.text, ascii=look.ascii)
        times = (Span(f" x{entry.times}", "accent"),) if entry.times > 1 else ()
        body = _marked(text, tones[severity(entry.text)], wanted.search)
        lines.append(line(Span(f" {head[:room]:>{room}} | ", "dim", target), *body, *times))
    return lines


def _head(entry: Entry, hosts: Sequence[str], look: Look) -> str:
    if len(entry.ranks) == 1:
        rank = entry.ranks[0]
        host = safe(hosts[rank], ascii=look.ascii) if rank < len(hosts) else "?"
        return f"{host} {rank}"
    return f"{len(entry.ranks)} ranks {fold_numbers(entry.ranks)}"


def _marked(text: str, tone: str, search: re.Pattern[str] | None) -> list[Span]:
    if search is None:
        return [Span(text, tone)]
    spans, at = [], 0
    for match in search.finditer(text):
        if match.end() > match.start():
            spans += [Span(text[at : match.start()], tone), Span(match.group(), "mark")]
            at = match.end()
    return [*spans, Span(text[at:], tone)]


def hits(found: Sequence[Entry], search: re.Pattern[str] | None) -> list[int]:
    """Rows in which the search matches."""
    return [] if search is None else [row for row, entry in enumerate(found) if search.search(entry.text)]
