"""Curves and bars as inline SVG. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from launcher.dashboard.plot import short

WIDTH, HEIGHT = 560, 190
LEFT, RIGHT, TOP, BOTTOM = 58, 8, 10, 22
MAX_POINTS = 800
TICKS = 4


def curve(points: Sequence[tuple[float, float]], label: str, along: str = "step") -> str:
    """A line over steps, or what else `along` names, with a few ticks; points that are no numbers leave gaps."""
    points = [*points[:: max(1, len(points) // MAX_POINTS)], *points[-1:]]
    finite = [(x, y) for x, y in points if math.isfinite(y)]
    if len(finite) < 2:
        return ""
    low, high = min(y for _, y in finite), max(y for _, y in finite)
    if high == low:
        low, high = low - abs(low) * 0.1 - 1e-9, high + abs(high) * 0.1 + 1e-9
    first, last = finite[0][0], finite[-1][0]

    def place(x: float, y: float) -> str:
        across = LEFT + (x - first) / ((last - first) or 1.0) * (WIDTH - LEFT - RIGHT)
        down = TOP + (high - y) / (high - low) * (HEIGHT - TOP - BOTTOM)
        return f"{across:.1f},{down:.1f}"

    path, gap = [], True
    for x, y in points:
        if not math.isfinite(y):
            gap = True
            continue
        path.append(("M" if gap else "L") + place(x, y))
        gap = False
    grid = "".join(
        _tick(low + (high - low) * n / TICKS, place(first, low + (high - low) * n / TICKS))
        for n in range(TICKS + 1)
    )
    ends = (
        f'<text x="{LEFT}" y="{HEIGHT - 5}">{first:,.0f}</text>'
        f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 5}" text-anchor="end">{along} {last:,.0f}</text>'
    )
    title = escape(label)
    return (
        f'<figure><figcaption>{title}</figcaption><svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{title} over {along}s">{grid}{ends}<path class="curve" d="{"".join(path)}"/></svg></figure>'
    )


def _tick(value: float, place: str) -> str:
    y = place.partition(",")[2]
    return (
        f'<line class="tick" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>'
        f'<text x="{LEFT - 6}" y="{float(y) + 4:.1f}" text-anchor="end">{short(value)}</text>'
    )


def shares(parts: Sequence[tuple[str, float]]) -> str:
    """One bar, cut into parts as wide as their shares."""
    total = sum(value for _, value in parts) or 1.0
    found, x = [], 0.0
    for number, (name, value) in enumerate(parts):
        wide = value / total * 1000
        if wide > 0:
            title = f"{escape(name)}: {value / total:.1%}"
            found.append(
                f'<rect class="part-{number}" x="{x:.2f}" width="{wide:.2f}" height="26"><title>{title}</title></rect>'
            )
        x += wide
    return f'<svg class="shares" viewBox="0 0 1000 26" preserveAspectRatio="none" role="img">{"".join(found)}</svg>'
