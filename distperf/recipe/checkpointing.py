"""The sections that say when a run is saved, and where."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from distperf.recipe.kinds import choice, flag, or_null, text, whole
from distperf.recipe.sections import Count, Section


class MemorySection(Section):
    """The newest state, kept in shared memory on the nodes: a restart goes on from there without touching a disk.

    Each node has room for twice what its ranks save (12 bytes a parameter, divided by the ranks that share it), and for
    twice what they keep for others. It is gone when the run ends.
    """

    every_steps: Annotated[int, whole(0)] = Field(
        default=0,
        description="Steps between them; 0: none. When a rank dies, a restart loses at most this many steps, and those "
        "whose copies were on their way.",
    )
    copies: Annotated[int, whole(0)] = Field(
        default=1,
        description="How many of the nodes that follow keep a copy of a node's: as many nodes may be lost at once. "
        "Each rank sends what it saves once for each. A run on one node keeps none.",
    )
    dir: Annotated[str, text("an absolute path", r"/[^\0]*")] = Field(
        default="/dev/shm",
        description="A folder in memory (tmpfs), on every node. The run makes one of its own in there, readable to its "
        "user alone.",
    )


class CheckpointSection(Section):
    """When the run is saved, and what is kept."""

    every_steps: Annotated[int, whole(0)] = Field(
        default=50,
        description="Steps between checkpoints; 0: none between. A restart loses at most this many steps.",
    )
    save_last: Annotated[bool, flag()] = Field(
        default=True, description="Save after the last step too, so that the finished model is there."
    )
    keep: Count = Field(
        default=3,
        description="Newest checkpoints that are kept; older ones are removed. More than one, in case one is damaged.",
    )
    keep_every: Annotated[int, whole(0)] = Field(
        default=0,
        description="Checkpoints whose step this divides are kept for good, beside the newest; 0: none.",
    )
    keep_best: Annotated[str | None, or_null(choice("eval_loss", "loss"))] = Field(
        default=None,
        description="The checkpoint with the lowest value of this is kept for good as well, and `best` beside `latest` "
        "points to it. eval_loss: of the evaluation after the same step, so eval.every_steps must divide every_steps; "
        "loss: of the step itself.",
    )
    asynchronous: Annotated[bool, flag()] = Field(
        alias="async",
        default=True,
        description="Training stops only for a copy to host memory, of as many bytes as a rank saves, and a thread "
        "writes that beside the next steps. One at a time: a save waits for the one before. false: training waits "
        "until the checkpoint is there; also with offload.optimizer: nvme, whose state has no second place in memory.",
    )
    on_error: Annotated[str, choice("continue", "stop")] = Field(
        default="continue",
        description="When a checkpoint cannot be written (a full disk): continue trains on and says so, with the "
        "checkpoints before as they were; stop ends the run. The run always ends with "
        "an error when the checkpoint of its last step cannot be written.",
    )
    dir: Annotated[str | None, or_null(text("a path"))] = Field(
        default=None,
        description="One folder that all nodes see; relative to launch.workdir. Default: checkpoints/ of the run.",
    )
    memory: MemorySection = Field(
        default_factory=MemorySection,
        description="Checkpoints in the nodes' memory, beside those on disk.",
    )
