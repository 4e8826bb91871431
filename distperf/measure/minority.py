"""Of ranks that must hold equal weights, who does not? Pure: what ranks hold in, who is odd out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Disagreement:
    """Tensors of which ranks hold different contents. `odd`: those that most others contradict.

    Where no content has more holders than any other, all of them are odd: one is wrong, and nobody can say which.
    """

    odd: tuple[int, ...]
    others: tuple[int, ...]
    names: tuple[str, ...]


def shared(held: Sequence[Sequence[str]]) -> set[str]:
    """What more than one rank holds, of what each rank holds."""
    counts = Counter(name for names in held for name in set(names))
    return {name for name, count in counts.items() if count > 1}


def agree(held: Sequence[Mapping[str, int]]) -> bool:
    """Whether what several ranks hold is the same on all of them."""
    seen: dict[str, int] = {}
    return all(seen.setdefault(name, content) == content for each in held for name, content in each.items())


def disagreements(held: Sequence[Mapping[str, int]]) -> list[Disagreement]:
    """Who is odd, in which tensors, from the contents (hashes) that each rank holds by name.

    One entry for each set of odd ranks, that with the most tensors first.
    """
    found: dict[tuple[tuple[int, ...], tuple[int, ...]], list[str]] = {}
    names = dict.fromkeys(name for each in held for name in each)
    for name in names:
        holders: dict[int, list[int]] = {}
        for rank, each in enumerate(held):
            if name in each:
                holders.setdefault(each[name], []).append(rank)
        if len(holders) > 1:
            found.setdefault(_odd(list(holders.values())), []).append(name)
    entries = [Disagreement(odd, others, tuple(names)) for (odd, others), names in found.items()]
    return sorted(entries, key=lambda entry: -len(entry.names))


def _odd(holders: list[list[int]]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    most = max(map(len, holders))
    majority = [ranks for ranks in holders if len(ranks) == most]
    others = majority[0] if len(majority) == 1 else []
    odd = sorted(rank for ranks in holders if ranks is not others for rank in ranks)
    return tuple(odd), tuple(others)
