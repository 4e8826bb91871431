"""What a recipe says to a loop of the user's own (distperf.initialize): the words of a run's, without the run.

Where nothing is said, nothing of the loop's arithmetic changes: fp32, no clipping, one backward pass a step.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from pydantic import Field

from distperf.errors import RecipeError
from distperf.recipe.batch import fit_batch
from distperf.recipe.dividing import OffloadSection, ParallelSection
from distperf.recipe.kinds import choice
from distperf.recipe.offload_rules import offload_faults
from distperf.recipe.resolve import optimizer_spec
from distperf.recipe.rules import Fault, optimizer_faults
from distperf.recipe.runspec import OptimizerSpec
from distperf.recipe.sections import CountOrNull, OptimizerSection, PositiveOrNull, Section


class LoopTrainSection(Section):
    """The loop's batches, and how long it runs."""

    steps: CountOrNull = Field(
        default=None, description="Updates of the whole run; for optimizer.schedule, where that decays."
    )
    global_batch: CountOrNull = Field(
        default=None,
        description="Samples of one update over all ranks; with micro_batch this gives the number of backward passes "
        "of an update, which is one without the two.",
    )
    micro_batch: CountOrNull = Field(
        default=None, description="Samples that the loop gives the model at a time, on one rank."
    )
    grad_clip: PositiveOrNull = Field(
        default=None, description="Largest global L2 norm of the gradients. Default: no clipping."
    )


class LoopRecipe(Section):
    """A recipe for `distperf.initialize`."""

    train: LoopTrainSection = Field(
        default_factory=LoopTrainSection, description="The loop's batches, and how long it runs."
    )
    optimizer: OptimizerSection = Field(
        default_factory=OptimizerSection,
        description="How parameters are updated, where initialize is given no optimizer.",
    )
    precision: Annotated[str, choice("fp32", "bf16", "fp16")] = Field(
        default="fp32",
        description="Of working weights, gradients and, by these, activations; sums and the update are fp32 always, "
        "and fp16 has dynamic loss scaling.",
    )
    parallel: ParallelSection = Field(
        default_factory=ParallelSection, description="zero, dp_shard and dp_replicate only."
    )
    offload: OffloadSection = Field(
        default_factory=OffloadSection, description="What of the state rests elsewhere."
    )
    activation_checkpoint: Annotated[str, choice("none", "selective", "full")] = Field(
        default="none", description="What layers keep between forward and backward pass."
    )


def loop_faults(recipe: LoopRecipe) -> Iterator[Fault]:
    """Rules between keys."""
    for axis in ("tp", "cp", "pp"):
        if (size := getattr(recipe.parallel, axis)) > 1:
            text = (
                f"parallel.{axis} is {size}; a loop of one's own is divided by dp_shard and dp_replicate only"
            )
            yield Fault(f"parallel.{axis}", text)
    if recipe.offload.optimizer == "auto":
        text = "offload.optimizer is auto, which a plan settles; a loop of one's own has none: take none, cpu or nvme"
        yield Fault("offload.optimizer", text)
    train = recipe.train
    if (train.global_batch is None) != (train.micro_batch is None):
        missing = "micro_batch" if train.micro_batch is None else "global_batch"
        yield Fault("train", f"missing key train.{missing}: global_batch and micro_batch go together", True)
    yield from optimizer_faults(recipe.optimizer, train.steps)
    yield from (Fault(*fault) for fault in offload_faults(recipe.offload, recipe.parallel))


def loop_optimizer(recipe: LoopRecipe) -> OptimizerSpec:
    """The optimizer of a loop that brings none. Raises RecipeError where its schedule has no end."""
    steps, schedule = recipe.train.steps, recipe.optimizer.schedule
    if steps is None and schedule.name != "constant":
        raise RecipeError(
            f"optimizer.schedule decays ({schedule.name}) until train.steps, which the recipe does not say; give "
            "that, or optimizer.schedule.name: constant, or give initialize an optimizer of torch's"
        )
    return optimizer_spec(recipe.optimizer, steps or 1, {})


def loop_accumulation(recipe: LoopRecipe, data_parallel_size: int) -> int:
    """Backward passes an update. Raises BatchError where the batches do not divide."""
    train = recipe.train
    if train.global_batch is None:
        return 1
    return fit_batch(train.global_batch, train.micro_batch, data_parallel_size).accumulation
