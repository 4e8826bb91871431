"""Which layers each stage of a pipeline has, and whether schedule, stages and micro-batches fit together. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from distperf.errors import BatchError, MeshError
from distperf.recipe.batch import MOST_AUTO_MICRO_BATCH
from distperf.recipe.estimate import layer_parameter_count
from distperf.recipe.runspec import ModelSpec
from distperf.recipe.schedules import SCHEDULES, allows, demand, stage_count, stages_of

# From so many micro-batches for each rank on, the bubble is small (GPipe, arXiv:1811.06965, section 3).
MICRO_BATCHES_PER_RANK = 4


@dataclass(frozen=True)
class Stage:
    """Layers [start, stop) of a model; the first stage has the embedding, the last the final norm and the head."""

    index: int
    count: int  # stages of the whole pipeline
    start: int
    stop: int

    @property
    def is_first(self) -> bool:
        """It takes tokens."""
        return self.index == 0

    @property
    def is_last(self) -> bool:
        """It gives logits."""
        return self.index == self.count - 1


def stages(layers_per_stage: Sequence[int]) -> tuple[Stage, ...]:
    """The stages that hold so many layers each."""
    bounds = pairwise(accumulate(layers_per_stage, initial=0))
    return tuple(Stage(i, len(layers_per_stage), *bound) for i, bound in enumerate(bounds))


def held_stages(layers: Sequence[int], schedule: str, pp: int, rank: int) -> tuple[Stage, ...]:
    """The stages of one rank of the pipeline, in model order; `layers` of each stage of all ranks."""
    placed = stages(layers)
    return tuple(placed[index] for index in stages_of(schedule, pp, rank))


@dataclass(frozen=True)
class Costs:
    """What the parts of a model cost for a token, in one unit."""

    layers: tuple[float, ...]
    embedding: float = 0
    head: float = 0

    def of(self, stage: Stage) -> float:
        """A stage's cost."""
        ends = self.embedding * stage.is_first + self.head * stage.is_last
        return ends + sum(self.layers[stage.start : stage.stop])


def model_costs(model: ModelSpec, seq_len: int) -> Costs:
    """Floating-point operations of a forward pass for one token.

    A look-up counts as reading and adding one row; attention in full, as in `distperf.model.flops`.
    """
    norms = 2 * model.hidden
    layer = 2 * (layer_parameter_count(model) - norms) + 4 * model.hidden * seq_len
    return Costs((layer,) * model.layers, embedding=2 * model.hidden, head=2 * model.vocab * model.hidden)


def split_layers(costs: Costs, count: int) -> tuple[int, ...]:
    """Layers of each of `count` stages, all of at least one, so that the dearest stage is as cheap as can be.

    Of several such splits the one with the most even stages; of those, the one with more layers in front.
    """
    total = len(costs.layers)
    assert 1 <= count <= total, (count, total)
    dearest = _best(costs, count, lambda so_far, cost: max(so_far, cost))[0]
    limit = dearest * (1 + 1e-9)
    within = _best(costs, count, lambda so_far, cost: so_far + cost**2 if cost <= limit else float("inf"))
    return tuple(-negative for negative in within[1])


def _best(costs: Costs, count: int, add: Callable[[float, float], float]) -> tuple[float, tuple[int, ...]]:
    """The least (score, minus layers of each stage); `add` makes a score of the stages before and one more."""
    total = len(costs.layers)
    best: dict[int, tuple[float, tuple[int, ...]]] = {
        0: (0.0, ())
    }  # layers given to the stages so far -> score and split
    for index in range(count):
        left = count - 1 - index  # stages that still need a layer each
        stops = range(index + 1, total - left + 1) if left else (total,)
        best = {
            stop: min(
                (add(score, costs.of(Stage(index, count, start, stop))), (*split, start - stop))
                for start, (score, split) in best.items()
                if start < stop
            )
            for stop in stops
        }
    return best[total]


def layers_per_stage(costs: Costs, schedule: str, pp: int, given: Sequence[int] | None) -> tuple[int, ...]:
    """The split that was given, or one by cost; empty without a pipeline.

    Raises: MeshError where stages and layers do not fit together.
    """
    if pp == 1:
        return ()
    layers, count = len(costs.layers), stage_count(schedule, pp)
    if count > layers:
        most = layers // SCHEDULES[schedule].stages_per_rank
        raise MeshError(
            f"parallel.pp is {pp}: {_made_of(schedule, pp)} for {layers} layers, and each stage needs one; at most "
            f"pp {most} fits"
        )
    if given is None:
        return split_layers(costs, count)
    if sum(given) != layers and len(given) == count:
        raise MeshError(
            f"parallel.pp_layers places {sum(given)} layers ({' + '.join(map(str, given))}); the model has {layers}"
        )
    return given_layers(schedule, pp, given)


def given_layers(schedule: str, pp: int, given: Sequence[int]) -> tuple[int, ...]:
    """A split that was given, of a model whose layers nobody has counted yet; empty without a pipeline.

    Raises: MeshError where it is not one number a stage.
    """
    count = stage_count(schedule, pp)
    if pp > 1 and len(given) != count:
        raise MeshError(
            f"parallel.pp_layers has {len(given)} stages; it takes one number for each of {_made_of(schedule, pp)}"
        )
    return tuple(given) if pp > 1 else ()


def _made_of(schedule: str, pp: int) -> str:
    each = SCHEDULES[schedule].stages_per_rank
    return f"{stage_count(schedule, pp)} stages (pp {pp} x {each} a rank with pp_schedule {schedule})"


def check_micro_batches(schedule: str, pp: int, micro_batches: int) -> None:
    """Raises BatchError, with what would fit, where a pipeline cannot work with so many micro-batches a step."""
    if pp == 1 or allows(schedule, pp, micro_batches):
        return
    fitting = [n for n in range(1, micro_batches + 2 * stage_count(schedule, pp)) if allows(schedule, pp, n)]
    below = [n for n in fitting if n < micro_batches][-1:]
    above = [n for n in fitting if n > micro_batches][:1]
    raise BatchError(
        f"parallel.pp_schedule {schedule} with pp {pp} cannot run {micro_batches} micro-batches a step (global_batch / "
        f"(micro_batch x data-parallel ranks)); it takes {demand(schedule, pp)}; nearest that fit: "
        f"{', '.join(map(str, below + above))}"
    )


def auto_micro_batch(share: int, schedule: str, pp: int) -> int | None:
    """Sequences of one pass when a rank's share of the global batch goes through a pipeline; None: nothing fits.

    The largest divisor, up to 8, that leaves four micro-batches for each rank, else the smallest that can run.
    """
    sizes = [n for n in range(1, min(share, MOST_AUTO_MICRO_BATCH) + 1) if share % n == 0]
    runs = [n for n in sizes if allows(schedule, pp, share // n)]
    ample = [n for n in runs if share // n >= MICRO_BATCHES_PER_RANK * pp]
    return max(ample) if ample else min(runs, default=None)
