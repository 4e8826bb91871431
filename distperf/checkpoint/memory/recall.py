"""Go on from memory: which generations the nodes hold together, and what is missing brought to where it is needed."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict, replace
from typing import Any

from distperf.checkpoint.agree import agreed
from distperf.checkpoint.index import INDEX
from distperf.checkpoint.manifest import MANIFEST, CheckpointInfo, Manifest, list_checkpoints
from distperf.checkpoint.memory.ferry import carry
from distperf.checkpoint.memory.folder import keep_only, look
from distperf.checkpoint.memory.place import Place
from distperf.checkpoint.memory.route import Generation, Held, fetching, lacking, whole_generations
from distperf.checkpoint.read import Stored
from distperf.checkpoint.shards import State
from distperf.errors import CheckpointCorrupt

SMALL = (MANIFEST, INDEX)  # what every node must have to know what else it needs


class Recall:
    """The generations that were whole when this attempt began. `lacking`: what is wrong with each that was not."""

    def __init__(self, place: Place) -> None:
        """Collective.

        Raises:
            CheckpointError: on every rank: a node's memory cannot be looked at, or has no room.

        Cost: a JSON exchange of all file names; then manifest and index of each generation to nodes that have none.
        """
        self._place = place
        found = self._look()
        self.lacking = lacking(found)
        self._whole = {generation.step: generation for generation in whole_generations(found)}
        first = {place.nodes.ranks(node)[0] for node in range(place.nodes.count)}
        for generation in self._whole.values():
            self._bring(generation, [SMALL if rank in first else () for rank in range(len(place.nodes.of))])

    def infos(self) -> list[CheckpointInfo]:
        """The generations as checkpoints, as this node sees them: files that other nodes hold are no damage."""
        found = [info for info in list_checkpoints(self._place.folder) if info.step in self._whole]
        return [replace(info, problem=None) if info.manifest else info for info in found]

    def fill(self, manifest: Manifest, state: State) -> tuple[str, ...]:
        """Fill every rank's pieces from a generation. What was damaged on one node, and taken from another. Collective.

        Raises:
            CheckpointCorrupt: on every rank: some bytes are on no node as they were written.
            CheckpointError: on every rank: it does not fit the pieces, or there is no room.

        Cost: a JSON exchange of file names; whole files, once to each node that needs and lacks them. With the nodes
            and the mesh that wrote it: nothing. With damage, each node reads all that it holds, and all is done again.
        """
        if not (damage := self._fill(manifest, state)):
            return ()
        seen = whole_generations(self._look(closely=True))
        whole = {generation.step: generation for generation in seen}
        if manifest.step in whole:
            self._whole[manifest.step] = whole[manifest.step]
            again = self._fill(manifest, state)
        if manifest.step not in whole or again:
            raise CheckpointCorrupt("\n".join(damage))
        return damage

    def _fill(self, manifest: Manifest, state: State) -> tuple[str, ...]:
        """Bring what is needed, and fill; what was damaged of it."""
        path = self._place.generation(manifest.step)
        needed = self._agreed(lambda: Stored(path, manifest).files_for(state))
        self._bring(self._whole[manifest.step], needed)
        told = self._agreed(lambda: _damage(Stored(path, manifest), state))
        return tuple(dict.fromkeys(problem for problem in told if problem))

    def forget_others(self, step: int | None) -> None:
        """Remove all but the generation that training starts from, if it does from one."""
        if self._place.leads:
            keep_only(self._place.folder, step)

    def _look(self, *, closely: bool = False) -> list[list[Held]]:
        """What each node holds."""
        place = self._place

        def own() -> list[dict[str, Any]]:
            return [asdict(held) for held in look(place.folder, closely=closely)] if place.leads else []

        by_node: list[list[Held]] = [[] for _ in range(place.nodes.count)]
        for rank, found in enumerate(self._agreed(own)):
            by_node[place.nodes.of[rank]] += [Held(**fields) for fields in found]
        return by_node

    def _bring(self, generation: Generation, needed: Sequence[Collection[str]]) -> None:
        path, transfers = (
            self._place.generation(generation.step),
            fetching(self._place.nodes, generation, needed),
        )
        if transfers:
            self._agreed(lambda: path.mkdir(mode=0o700, exist_ok=True))
            carry("cannot go on from memory", transfers, path, self._place.group)

    def _agreed(self, action: Any) -> list[Any]:
        return agreed("cannot go on from memory", action, self._place.group)


def _damage(stored: Stored, state: State) -> str | None:
    try:
        stored.fill(state)
    except CheckpointCorrupt as error:
        return str(error)
    return None
