"""What must hold between the keys of `checkpoint` and others. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from distperf.recipe.checkpointing import CheckpointSection, MemorySection
from distperf.recipe.dividing import OffloadSection
from distperf.recipe.feeding import EvalSection


def checkpoint_faults(
    checkpoint: CheckpointSection, evaluation: EvalSection, offload: OffloadSection
) -> Iterator[tuple[str, str]]:
    """Keys, and what is wrong with them."""
    if (text := _no_best(checkpoint, evaluation)) is not None:
        yield "checkpoint.keep_best", f"checkpoint.keep_best is {checkpoint.keep_best}, but {text}"
    if checkpoint.memory.every_steps and "nvme" in (offload.optimizer, offload.params):
        key = "optimizer" if offload.optimizer == "nvme" else "params"
        yield (
            "checkpoint.memory.every_steps",
            f"checkpoint.memory.every_steps is {checkpoint.memory.every_steps}, but offload.{key} is nvme: state is on "
            "drives because memory has no room for it; take out one of the two",
        )
    if not checkpoint.memory.every_steps and checkpoint.memory != MemorySection():
        yield (
            "checkpoint.memory",
            "checkpoint.memory keeps nothing; missing key checkpoint.memory.every_steps",
        )


def _no_best(checkpoint: CheckpointSection, evaluation: EvalSection) -> str | None:
    """Why no checkpoint would have the metric by which one is the best."""
    every = checkpoint.every_steps
    if checkpoint.keep_best is None:
        return None
    if not every:
        return "checkpoint.every_steps is 0: there is at most one checkpoint to choose from"
    if checkpoint.keep_best == "loss":
        return None
    if not evaluation.every_steps:
        return "there are no evaluations; give eval.every_steps, or take loss"
    if every % evaluation.every_steps:
        return (
            f"checkpoints are written every {every} steps and eval.every_steps, {evaluation.every_steps}, does not "
            "divide that: some would have none; change one of the two"
        )
    return None
