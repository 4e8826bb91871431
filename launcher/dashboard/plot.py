"""A curve in a few rows of text: braille dots, or stars where only ASCII may be used. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

from launcher.dashboard.lines import Line, Look, Span, fit

Points = Sequence[tuple[float, float]]

_BRAILLE = 0x2800
_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))  # row, column -> bit
LABEL = 8  # columns left of the axis


def plot(points: Points, look: Look, tone: str = "accent") -> list[Line]:
    """`look.height` rows: the curve over its axis, highest and lowest value left, first and last x below."""
    finite = [(x, y) for x, y in points if math.isfinite(y)]
    rows = max(1, look.height - 1)
    if len(finite) < 2:
        blank: Line = ()
        text = (
            "no points yet" if not finite else f"{short(finite[0][1])} at {finite[0][0]:.0f}, the only point"
        )
        return [fit((Span(" " * LABEL + " " + text, "dim"),), look.width), *[blank] * rows]
    columns = max(4, look.width - LABEL - 1)
    low, high = _range([y for _, y in finite])
    drawn = (_stars if look.ascii else _braille)(finite, columns, rows, low, high)
    axis = look.pick("\N{BOX DRAWINGS LIGHT VERTICAL}", "|")
    lines = []
    for row, text in enumerate(drawn):
        value = high if row == 0 else low if row == rows - 1 else None
        label = "" if value is None else short(value)
        lines.append((Span(f"{label:>{LABEL}}", "dim"), Span(axis, "dim"), Span(text, tone)))
    first, last = f"{finite[0][0]:,.0f}", f"{finite[-1][0]:,.0f}"
    gap = max(1, columns - len(first) - len(last))
    below = Span(" " * (LABEL + 1) + first + " " * gap + last, "dim")
    return [*lines, fit((below,), look.width)]


def _range(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    if high - low < 1e-12 * max(1.0, abs(high)):
        room = abs(high) * 0.1 or 1.0
        return low - room, high + room
    return low, high


def _columns(points: Points, columns: int) -> list[tuple[float, float] | None]:
    """Lowest and highest value that the line takes in each column, so that the curve has no holes."""
    first, last = points[0][0], points[-1][0]
    spread = (last - first) or 1.0
    found: list[tuple[float, float] | None] = [None] * columns
    before: tuple[int, float] | None = None
    for x, y in points:
        at = min(columns - 1, int((x - first) / spread * columns))
        begin, start = before or (at, y)
        for column in range(begin, at + 1):
            low, high = sorted(_within(column + half, begin, start, at, y) for half in (-0.5, 0.5))
            here = found[column]
            found[column] = (low, high) if here is None else (min(here[0], low), max(here[1], high))
        before = (at, y)
    return found


def _within(column: float, begin: int, start: float, end: int, stop: float) -> float:
    """Value of the line from (begin, start) to (end, stop) at a column; beyond its ends, that of the nearer one."""
    share = (column - begin) / (end - begin) if end > begin else float(column > begin)
    return start + min(1.0, max(0.0, share)) * (stop - start)


def _braille(points: Points, columns: int, rows: int, low: float, high: float) -> list[str]:
    cells = [[0] * columns for _ in range(rows)]
    for x, span in enumerate(_columns(points, columns * 2)):
        if span is None:
            continue
        top, bottom = _row(span[1], low, high, rows * 4), _row(span[0], low, high, rows * 4)
        for y in range(top, bottom + 1):
            cells[y // 4][x // 2] |= _DOTS[y % 4][x % 2]
    return ["".join(chr(_BRAILLE + bits) if bits else " " for bits in row) for row in cells]


def _stars(points: Points, columns: int, rows: int, low: float, high: float) -> list[str]:
    cells = [[" "] * columns for _ in range(rows)]
    for x, span in enumerate(_columns(points, columns)):
        if span is None:
            continue
        top, bottom = _row(span[1], low, high, rows), _row(span[0], low, high, rows)
        for y in range(top, bottom + 1):
            cells[y][x] = "*"
    return ["".join(row) for row in cells]


def _row(value: float, low: float, high: float, rows: int) -> int:
    return min(rows - 1, max(0, round((high - value) / (high - low) * (rows - 1))))


def short(value: float) -> str:
    """A number in few characters: `1.2M`, `0.00034`, `2.314`."""
    size = abs(value)
    if size >= 1e15:
        return f"{value:.0e}"
    for unit, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if size >= unit:
            return f"{value / unit:.3g}{letter}"
    if size >= 0.01 or value == 0:
        return f"{value:.4g}"
    return f"{value:.1e}"
