"""Where a rank's checkpoints in memory are, and with whom it shares them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist

from distperf.checkpoint.agree import agreed
from distperf.checkpoint.manifest import step_name
from distperf.checkpoint.memory.route import Nodes
from distperf.contract import MEMORY_ENV
from distperf.errors import CheckpointError

COPY_TIMEOUT = timedelta(
    hours=1
)  # as long as a save may take; training meanwhile goes on, under its own limits


@dataclass(frozen=True)
class Place:
    """A rank's node, its folder in that node's memory, and a process group for what is said and sent about it."""

    folder: Path
    rank: int
    nodes: Nodes
    group: dist.ProcessGroup

    @property
    def node(self) -> int:
        """This rank's node."""
        return self.nodes.of[self.rank]

    @property
    def leads(self) -> bool:
        """This rank does what is done once on its node."""
        return self.nodes.ranks(self.node)[0] == self.rank

    def generation(self, step: int) -> Path:
        """Where the generation of this step is on this node."""
        return self.folder / step_name(step)


def meet(node_rank: int) -> Place:
    """Find out who is where. Collective.

    Raises:
        CheckpointError: on every rank: the launcher has given one no folder.
    """

    def own() -> int:
        if not os.path.isdir(os.environ.get(MEMORY_ENV, "")):
            raise CheckpointError(
                f"{MEMORY_ENV} names no folder: `distperf launch` makes it on each node, and removes it at the end; "
                "without it, set checkpoint.memory.every_steps to 0"
            )
        return node_rank

    group = dist.new_group(backend="gloo", timeout=COPY_TIMEOUT)
    assert group is not None
    nodes = Nodes(tuple(agreed("no checkpoints in memory", own, group)))
    return Place(Path(os.environ[MEMORY_ENV]), dist.get_rank(), nodes, group)
