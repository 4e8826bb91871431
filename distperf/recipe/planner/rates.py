"""What `distperf bench` measured, as the planner reckons with it. Pure.

    what                                where            amount            value
    reduce, gather, all_reduce, ...     host, hosts      bytes sent        seconds of a call
    tensor, ulysses, ring               host, hosts      bytes sent        seconds that dividing a layer adds to it
    matmul, layer                       fp32, bf16, ...  width             FLOP/s
    loss                                fp32, bf16, ...                    logits a second
    copy, update                                                           bytes a second, read and written
    read, write                         a drive          bytes a request   bytes a second of a rank
    offload                                              bytes a request   the same, read and written at once

Of several ranks or links that do the same, the slowest one's: a step goes as its slowest rank does.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, replace
from math import exp, log

HOST, HOSTS = "host", "hosts"
COMPUTE = ("matmul", "layer", "loss")


@dataclass(frozen=True)
class Measure:
    """One thing in all sizes that were tried. points: (amount, value), amounts ascending."""

    what: str
    where: str
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Rates:
    """All that was measured on some hosts. source: by what, and when."""

    source: str
    measures: tuple[Measure, ...]

    def rate(self, what: str, where: str = "", amount: float = 1.0) -> float | None:
        """Per second, at a size between those tried by their neighbours, beyond them as at the end."""
        points = self._points(what, where)
        return _between(points, amount) if points else None

    def seconds(self, what: str, where: str, sent: float, calls: int) -> float | None:
        """Of so many calls that together send so many bytes; None where that was not measured."""
        points = self._points(what, where)
        if not points or not calls:
            return None if calls else 0.0
        each = sent / calls
        if each <= points[0][0]:
            return calls * points[0][1]
        if each <= points[-1][0]:
            return calls * _between(points, each)
        return sent / points[-1][0] * points[-1][1]

    def without(self, *, compute: bool, inside: bool, outside: bool) -> Rates:
        """Less what somebody knows better: arithmetic, what goes inside of hosts, what goes between them."""
        gone = {where for where, better in ((HOST, inside), (HOSTS, outside)) if better}
        kept = [m for m in self.measures if m.where not in gone and not (compute and m.what in COMPUTE)]
        return replace(self, measures=tuple(kept))

    def _points(self, what: str, where: str) -> tuple[tuple[float, float], ...]:
        return next((m.points for m in self.measures if (m.what, m.where) == (what, where)), ())


def _between(points: tuple[tuple[float, float], ...], amount: float) -> float:
    """On straight lines between points, of logarithms."""
    at = bisect_left([x for x, _ in points], amount)
    if at in (0, len(points)):
        return points[min(at, len(points) - 1)][1]
    (x, y), (to_x, to_y) = points[at - 1 : at + 1]
    share = (log(amount) - log(x)) / (log(to_x) - log(x))
    return exp(log(y) + share * (log(to_y) - log(y)))
