"""What a run takes of a node beside its devices, and of the folder of its checkpoints. Pure."""

from __future__ import annotations

from distperf.recipe.estimate import known_parameters
from distperf.recipe.planner.hardware import Hardware
from distperf.recipe.planner.memory import CHECKPOINT_BYTES, Memory
from distperf.recipe.runspec import RunSpec

# A rank on a GPU has its libraries and pinned buffers in the host's memory; as reported by others, not measured here.
HOST_BYTES_OF_GPU_RANK = 3 * 2**30


def host_bytes(planned: Memory, hardware: Hardware, ranks: int) -> int:
    """Of the host's memory, by `ranks` ranks on it: without devices, all that they hold."""
    of_gpu_rank = (
        HOST_BYTES_OF_GPU_RANK + planned.state.host_bytes + planned.snapshot_bytes + planned.kept_bytes
    )
    return ranks * (of_gpu_rank if hardware.fused else planned.total_bytes)


def checkpoint_bytes(spec: RunSpec) -> int | None:
    """Of one checkpoint; None for a model that only its own code knows."""
    count = known_parameters(spec.model)
    return None if count is None else CHECKPOINT_BYTES * count


def disk_bytes(spec: RunSpec) -> int | None:
    """Of `checkpoint.dir`, at most: the newest that are kept, those kept for good, and one that is being written."""
    each = checkpoint_bytes(spec)
    if not spec.checkpoint.is_on:
        return 0
    for_good = spec.train.steps // spec.checkpoint.keep_every if spec.checkpoint.keep_every else 0
    return None if each is None else each * (spec.checkpoint.keep + 1 + for_good)


def drive_bytes(planned: Memory, ranks: int) -> int:
    """Of a node's drives, by the optimizer state of `ranks` ranks that rests there."""
    return ranks * planned.state.disk_bytes
