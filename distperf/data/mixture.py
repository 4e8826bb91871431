"""Which source of a mixture the sample at a position of the stream comes from: pure arithmetic.

Positions go round a table in which each source stands as often as its weight says, spread so evenly that among the
first n samples of a run it has had its share of n, to less than one sample. How many a source has given before any
position is known without counting, so a seek costs nothing, and each source has epochs of its own.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Mixture:
    """One round of the table. `before[place]`: how often `source[place]` stands at earlier places."""

    weights: tuple[int, ...]
    source: NDArray[Any]
    before: NDArray[Any]

    @classmethod
    def of(cls, weights: Sequence[int]) -> Mixture:
        """Weights are whole numbers of at least 1; a round has as many places as they add up to."""
        source = np.array(spread(weights), dtype=np.int32)
        before = np.empty_like(source)
        for at, weight in enumerate(weights):
            before[source == at] = np.arange(weight)
        return cls(tuple(weights), source, before)

    def at(self, position: int) -> tuple[int, int]:
        """The source of the sample at a position, and how many samples of that source come before it."""
        rounds, place = divmod(position, len(self.source))
        source = int(self.source[place])
        return source, rounds * self.weights[source] + int(self.before[place])


def spread(weights: Sequence[int]) -> list[int]:
    """Sources, each `weights[source]` times, such that any first n hold n * weight / sum of each, to less than one.

    The j-th item of a source belongs between j and j + 1 of its n-ths of the round. Taking always the one that is due
    first of those that may come keeps all of them there.
    Source: Baruah et al., Proportionate Progress, Algorithmica 15 (1996).
    """
    size = sum(weights)
    waiting = [(0, source) for source in range(len(weights))]  # by the place from which on it may come
    ready: list[tuple[int, int]] = []  # by the place at which it must have come
    taken, out = [0] * len(weights), []
    for place in range(size):
        while waiting and waiting[0][0] <= place:
            _, source = heapq.heappop(waiting)
            heapq.heappush(ready, (-(-(taken[source] + 1) * size // weights[source]), source))
        _, source = heapq.heappop(ready)
        out.append(source)
        taken[source] += 1
        if taken[source] < weights[source]:
            heapq.heappush(waiting, (taken[source] * size // weights[source], source))
    return out
