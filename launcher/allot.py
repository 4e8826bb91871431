"""Which hosts hold the places of the next attempt. Pure.

A place is what a node of the first attempt was: so many slots, in node order. Whoever holds one keeps it; a host
that is lost, or that failed again and again, gives it up to the first spare that has as many slots. Without a spare
the run waits for a lost host as long as it makes sense, then goes on with fewer nodes where the recipe allows it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

EMPTY = ""  # holds a place that no host fits
MOST_FAILURES = (
    2  # first failures on one host, of any attempts, until it is set aside; two in a row are enough
)

# Of a lost host: it is being connected to | that went wrong once, and is tried on | nobody waits for it any more.
Absence = Literal["trying", "away", "gone"]


@dataclass(frozen=True)
class Member:
    """A host of the run, spare or not."""

    host: str
    slots: int


@dataclass(frozen=True)
class Allotment:
    """Who holds each place, or EMPTY; nobody at all where too few are left."""

    places: tuple[str, ...]
    waits_for: frozenset[str] = frozenset()  # decide again when these are back, or known not to be

    @property
    def nodes(self) -> int:
        """Places that are held."""
        return sum(host != EMPTY for host in self.places)


def set_aside(first_failures: Sequence[str]) -> frozenset[str]:
    """Hosts not to be used while others are there, by the host of each attempt's first failure."""
    often = {host for host, count in Counter(first_failures).items() if count > MOST_FAILURES}
    in_a_row = {host for host, following in pairwise(first_failures) if host == following}
    return frozenset(often | in_a_row)


def allot(
    pool: Sequence[Member],
    places: Sequence[str],
    lost: Mapping[str, Absence],
    aside: Collection[str],
    min_nodes: int,
) -> Allotment:
    """The next attempt's holders.

    Args:
        pool: all hosts in order; the first len(places) give the places their sizes, the others are spares
        places: who holds them so far
        lost: hosts that do not answer
        aside: hosts that failed repeatedly; they serve only where the run would end without them
        min_nodes: how many places must be held
    """
    for avoided in (frozenset(aside), frozenset[str]()):
        found = _fill(pool, places, lost, avoided)
        if found.waits_for or found.nodes >= min_nodes:
            return found
    return Allotment((EMPTY,) * len(places))


def _fill(
    pool: Sequence[Member], places: Sequence[str], lost: Mapping[str, Absence], avoided: frozenset[str]
) -> Allotment:
    trying = {h for h in places if lost.get(h) == "trying" and h not in avoided}
    here = {member.host for member in pool if member.host not in lost and member.host not in avoided}
    free = [member for member in pool if member.host in here and member.host not in places]
    holders = [host if host in here | trying else EMPTY for host in places]
    largest_first = sorted(
        range(len(places)), key=lambda place: -pool[place].slots
    )  # so that most can be held
    for place in largest_first:
        fitting = next((member for member in free if member.slots >= pool[place].slots), None)
        if holders[place] == EMPTY and fitting is not None:
            free.remove(fitting)
            holders[place] = fitting.host
    away = {
        host
        for host, holder in zip(places, holders, strict=True)
        if holder == EMPTY and lost.get(host) == "away" and host not in avoided
    }
    return Allotment(tuple(holders), frozenset(trying | away))
