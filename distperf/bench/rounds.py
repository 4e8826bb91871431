"""Who exchanges with whom when, so that every pair has its links to itself. Pure."""

from __future__ import annotations


def rounds(count: int, most: int) -> list[dict[int, int]]:
    """Up to `most` rounds of disjoint pairs among `count`, as partner by member; enough of them have every pair once.

    Source: the circle method of round-robin tournaments: one stays, the others go round.
    """
    circle = list(range(count + count % 2))  # with an odd number one of each round meets nobody
    found = []
    for _ in range(min(most, len(circle) - 1)):
        pairs = [(a, b) for a, b in zip(circle, reversed(circle), strict=True) if max(a, b) < count]
        found.append({a: b for a, b in pairs if a != b})
        circle = [circle[0], circle[-1], *circle[1:-1]]
    return found
