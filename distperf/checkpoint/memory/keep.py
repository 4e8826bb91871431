"""Keep a run's newest state in the memory of its nodes: written where it is, copied to the nodes that follow.

Training stops while a rank writes its pieces into its node's memory; the rest is done beside it, by a thread. All ranks
have written, all copies are there, every node has the manifest: only then does the generation get its name on any node,
and only when it has it on all does the one before go. So one generation is whole at any moment, whatever is killed.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from distperf.checkpoint import shards
from distperf.checkpoint.agree import agreed
from distperf.checkpoint.index import merged
from distperf.checkpoint.manifest import Origin, Position, file_sums, new_manifest, now, write_manifest
from distperf.checkpoint.memory.ferry import carry
from distperf.checkpoint.memory.folder import partial_name, remove_older, used_bytes
from distperf.checkpoint.memory.place import Place
from distperf.checkpoint.memory.route import copying
from distperf.errors import CheckpointError

GENERATIONS = 2  # one that is whole, one that is being written


@dataclass(frozen=True)
class Kept:
    """A generation that is there on all nodes. `bytes`: of this rank, without copies."""

    step: int
    bytes: int
    seconds: float


@dataclass(frozen=True)
class Written:
    """What this rank has written of a generation, or why it could not."""

    position: Position
    parts: Mapping[str, Any]
    error: OSError | None
    began: float

    def told(self, rank: int) -> dict[str, Any]:
        """To the other ranks; by rank 0 what all manifests shall say. Raises OSError."""
        if self.error is not None:
            raise self.error
        said = {"created": now(), "position": asdict(self.position)} if rank == 0 else {}
        return {**self.parts, **said}


class Keeper:
    """Writes one run's generations. One at a time, in the same order on all ranks."""

    def __init__(self, place: Place, origin: Origin, copies: int) -> None:
        self._place, self._origin, self._copies = place, origin, copies

    def check_room(self, state: shards.State) -> None:
        """See that two generations and their copies fit into every node's memory. Collective.

        Raises:
            CheckpointError: on every rank; names folders, and what is needed and there.
        """
        place, nodes = self._place, self._place.nodes
        sizes = agreed("cannot count", lambda: shards.saved_bytes(state), place.group)
        received = [
            (rank, keeper) for rank in range(len(sizes)) for keeper in nodes.keepers(rank, self._copies)
        ]
        here = sum(size for rank, size in enumerate(sizes) if nodes.of[rank] == place.node)
        here += sum(sizes[rank] for rank, keeper in received if nodes.of[keeper] == place.node)

        def check() -> None:
            if not place.leads:
                return
            there = shutil.disk_usage(place.folder).free + used_bytes(place.folder)
            if GENERATIONS * here > there:
                raise CheckpointError(
                    f"{GENERATIONS} times {here:,} bytes are needed, and {place.folder.parent} has {there:,}: "
                    "enlarge it (mount -o remount,size=..., --shm-size of a container), name another with "
                    "checkpoint.memory.dir, or set checkpoint.memory.copies to 0"
                )

        agreed("no room for checkpoints in memory", check, place.group)

    def write(self, position: Position, state: shards.State) -> Written:
        """Write this rank's pieces into its node's memory. Waits for nobody; `finish` tells what went wrong.

        Cost: sends nothing; one pass over the pieces, which are hashed and copied.
        """
        began, partial = time.monotonic(), self._place.folder / partial_name(position.step)
        try:
            partial.mkdir(mode=0o700, exist_ok=True)
            parts = shards.write_shard(partial, self._place.rank, state)
        except OSError as error:
            return Written(position, {}, error, began)
        return Written(position, parts, None, began)

    def finish(self, written: Written) -> Kept:
        """Make what all ranks have written a generation. Collective, by any one thread of each rank.

        Raises:
            CheckpointError: on every rank, when it failed on any. The generation before is untouched, and nothing of
                this one is left.

        Cost: a rank sends what it has written once for each copy, and receives as much where nodes have equally many
            ranks; five JSON exchanges, the first about 250 bytes a piece and 40 a block.
        """
        place, step = self._place, written.position.step
        partial, final = place.folder / partial_name(step), place.generation(step)
        try:
            parts = self._agreed(step, lambda: written.told(place.rank))
            sizes = [{name: sums["bytes"] for name, sums in part["files"].items()} for part in parts]
            carry(self._what(step), copying(place.nodes, self._copies, sizes), partial, place.group)
            self._agreed(step, lambda: self._describe(partial, parts))
            self._agreed(step, lambda: self._name(partial, final))
        except CheckpointError:
            for path in (partial, final) if place.leads else ():
                shutil.rmtree(path, ignore_errors=True)
            raise
        if place.leads:
            remove_older(place.folder, step)
        return Kept(step, sum(sizes[place.rank].values()), time.monotonic() - written.began)

    def _name(self, partial: Path, final: Path) -> None:
        if self._place.leads:
            partial.rename(final)

    def _what(self, step: int) -> str:
        return f"cannot keep step {step} in memory"

    def _agreed(self, step: int, action: Callable[[], Any]) -> list[Any]:
        return agreed(self._what(step), action, self._place.group)

    def _describe(self, partial: Path, parts: Sequence[Mapping[str, Any]]) -> None:
        """Write index and manifest, once a node: the same bytes on each."""
        if not self._place.leads:
            return
        files = file_sums({name: sums for part in parts for name, sums in part["files"].items()})
        files.update(shards.write_own_index(partial, merged(part["tensors"] for part in parts)))
        position, created = Position(**parts[0]["position"]), parts[0]["created"]
        manifest = new_manifest(self._origin, position, files, torch=torch.__version__, created=created)
        write_manifest(partial, manifest)
