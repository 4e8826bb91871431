"""Who shares a node, who keeps whose copies, which generation is whole, and which files go where. Pure.

A generation is a checkpoint in memory: one step's files, each on the node that wrote it and on those that keep copies.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Nodes:
    """The node of each rank, by rank; nodes count from 0."""

    of: tuple[int, ...]

    @property
    def count(self) -> int:
        """How many nodes."""
        return max(self.of) + 1

    @functools.cached_property
    def _ranks(self) -> list[list[int]]:
        found: list[list[int]] = [[] for _ in range(self.count)]
        for rank, node in enumerate(self.of):
            found[node].append(rank)
        return found

    def ranks(self, node: int) -> list[int]:
        """The ranks on a node."""
        return self._ranks[node]

    def keepers(self, rank: int, copies: int) -> list[int]:
        """Who keeps copies of what this rank writes: on each of the next nodes, the rank in its own place there."""
        own = self.of[rank]
        place = self.ranks(own).index(rank)
        following = [
            self.ranks((own + far) % self.count) for far in range(1, min(copies, self.count - 1) + 1)
        ]
        return [there[place % len(there)] for there in following]


@dataclass(frozen=True)
class Transfer:
    """A file that one rank sends to another, on another node."""

    file: str
    bytes: int
    source: int
    target: int


@dataclass(frozen=True)
class Held:
    """What a node holds of a generation: files and their bytes, the manifest among them.

    `seal`: the manifest's checksum; `total`: how many files there are on all nodes.
    """

    step: int
    seal: str
    files: Mapping[str, int]
    total: int


@dataclass(frozen=True)
class Generation:
    """A whole generation: every file (`sizes`: its bytes) is on some node. `held`: by node, the files there."""

    step: int
    sizes: Mapping[str, int]
    held: tuple[Collection[str], ...]


def whole_generations(found: Sequence[Sequence[Held]]) -> list[Generation]:
    """What can be loaded, oldest first, of what each node holds: `found`, by node.

    Nodes that hold other files under the same step (a later attempt did it again) do not add up to one.
    """
    return [generation for generation, total in _generations(found) if len(generation.sizes) == total]


def lacking(found: Sequence[Sequence[Held]]) -> list[str]:
    """What is wrong with each generation that is not whole, oldest first."""
    return [
        f"step {generation.step}: {total - len(generation.sizes)} of its {total} files are on no node, or damaged there"
        for generation, total in _generations(found)
        if len(generation.sizes) < total
    ]


def _generations(found: Sequence[Sequence[Held]]) -> Iterator[tuple[Generation, int]]:
    """Each generation as far as it is there, and how many files it has."""
    for step, seal, total in sorted({(held.step, held.seal, held.total) for node in found for held in node}):
        own = [
            next((held.files for held in node if (held.step, held.seal) == (step, seal)), {})
            for node in found
        ]
        sizes = {name: size for files in own for name, size in files.items()}
        yield Generation(step, sizes, tuple(own)), total


def copying(nodes: Nodes, copies: int, written: Sequence[Mapping[str, int]]) -> list[Transfer]:
    """The way of every file (name and bytes, by the rank that wrote it) to those that keep copies."""
    return [
        Transfer(file, size, rank, keeper)
        for rank, files in enumerate(written)
        for keeper in nodes.keepers(rank, copies)
        for file, size in files.items()
    ]


def fetching(nodes: Nodes, generation: Generation, needed: Sequence[Collection[str]]) -> list[Transfer]:
    """The way of every file that ranks need (`needed`, by rank) and their node lacks; once to each node.

    Who sends is spread over the nodes that hold a file, and over their ranks.
    """
    held = generation.held
    transfers: list[Transfer] = []
    coming: set[tuple[int, str]] = set()
    for rank, names in enumerate(needed):
        node = nodes.of[rank]
        for file in sorted(names):
            if file in held[node] or (node, file) in coming:
                continue
            coming.add((node, file))
            holders = [other for other in range(nodes.count) if file in held[other]]
            senders = nodes.ranks(holders[node % len(holders)])
            transfers.append(
                Transfer(file, generation.sizes[file], senders[len(transfers) % len(senders)], rank)
            )
    return transfers
