"""What the ranks of a stalled run were found doing: folded by equality, and who did not come. Pure.

A look at a rank is what its agent answers (launcher.agent.stacks): state (the kernel's letter), stack (faulthandler's
text), note (why there is none), collectives (those of the flight recorder that have not ended, oldest
first).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from launcher.nodeset import fold_numbers
from launcher.state import Rank

STOPPED = "stopped by a signal (SIGSTOP, or a debugger)"
_THREAD = re.compile(r"^(?:Current thread|Thread|Stack) .*:$", re.MULTILINE)
_FRAME = re.compile(r'^  File "(.*)", line (\d+) in (.*)$', re.MULTILINE)
_LIBRARY = re.compile(
    r"/(?:site|dist)-packages/(?!distperf/)|/lib/python3[^/]*/(?!(?:site|dist)-packages/)|^<"
)
_STARTER = re.compile(
    r"^<frozen runpy>$|/distperf-[^/]*/nursery\.py$"
)  # the same for all, but for its folder's name
_WAITS = re.compile(r"/torch/distributed/|/distperf/parallel/|/distperf/process_group")


@dataclass(frozen=True)
class Place:
    """What a rank is doing, without what makes it this rank: equal places are folded."""

    words: str  # stopped by a signal | in FILE:LINE function | why nothing is known
    frames: tuple[str, ...] = ()  # of its main thread, innermost first
    collective: str | None = None
    number: int = 0  # of the collective

    @property
    def waits(self) -> bool:
        """It waits for the others, as far as its stack tells."""
        return any(_WAITS.search(frame) for frame in self.frames)

    @property
    def sentence(self) -> str:
        """In one line."""
        return self.words if self.collective is None else f"{self.words}, {self.collective}"


UNKNOWN = Place("no stack: its agent did not answer in time")


def place(look: Mapping[str, Any]) -> Place:
    """A rank's place, from the look that its agent took."""
    waiting = next(iter(look.get("collectives") or []), None)  # the oldest one that has not ended
    named: tuple[str | None, int] = (None, 0)
    if waiting is not None:
        named = f"{waiting.get('name')} #{waiting.get('number')}", int(waiting.get("number") or 0)
    if look.get("state") in ("T", "t"):
        return Place(STOPPED, (), *named)
    frames = main_thread(str(look.get("stack") or ""))
    if not frames:
        return Place(str(look.get("note") or "no stack"), (), *named)
    texts = tuple(f"{file}:{line} {function}" for file, line, function in frames)
    own = [text for text, (file, _, _) in zip(texts, frames, strict=True) if not _LIBRARY.search(file)]
    return Place(f"in {(own or texts)[0]}", texts, *named)


def main_thread(text: str) -> list[tuple[str, str, str]]:
    """(file, line, function), innermost first, of the stack that faulthandler wrote last: that of the main thread."""
    frames = _FRAME.findall(_THREAD.split(text)[-1])
    return [(file, line, name) for file, line, name in frames if not _STARTER.search(file)]


def fold(places: Mapping[int, Place]) -> list[tuple[list[int], Place]]:
    """Ranks by equal place, the largest group first."""
    groups: dict[Place, list[int]] = {}
    for rank in sorted(places):
        groups.setdefault(places[rank], []).append(rank)
    return sorted(
        ((ranks, place) for place, ranks in groups.items()), key=lambda group: (-len(group[0]), group[0])
    )


def held_up_by(ranks: Iterable[Rank], places: Mapping[int, Place], script: bool) -> Rank:
    """The rank that the others wait for.

    In this order: stopped, fewest steps, not waiting itself, in the earliest collective, with the fewest others where
    it is; the lowest of those.
    """
    there = [rank for rank in ranks if not rank.over]
    sizes = {place: len(group) for group, place in fold(places)}
    comparable = (
        not script or sum(bool(rank.step) for rank in there) > 1
    )  # a script may report on one rank only

    def order(rank: Rank) -> tuple[Any, ...]:
        place = places[rank.rank]
        step = (rank.step or (float("inf") if script else 0)) if comparable else 0
        return place.words != STOPPED, step, place.waits, place.number, sizes[place], rank.rank

    return min(there, key=order)


def groups(places: Mapping[int, Place]) -> list[dict[str, Any]]:
    """For the journal and `status --json`."""
    return [
        {"ranks": fold_numbers(ranks), "where": place.words, "collective": place.collective,
         "stack": "\n".join(place.frames)}
        for ranks, place in fold(places)
    ]  # fmt: skip
