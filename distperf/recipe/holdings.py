"""How many parameters a rank holds of a model that is cut into stages and layers divided. Pure."""

from __future__ import annotations

from functools import lru_cache

from distperf.recipe.estimate import StateBytes, layer_parameter_count, model_state
from distperf.recipe.offload_rules import ShardGroups, offloaded
from distperf.recipe.runspec import ModelSpec, ParallelSpec, RunSpec
from distperf.recipe.schedules import reshards, stages_of
from distperf.recipe.stages import Stage, stages


def largest_state(spec: RunSpec) -> StateBytes | None:
    """State of the rank that holds most; None for a model that only its own code knows."""
    if not isinstance(spec.model, ModelSpec):
        return None
    return state_of(spec, max(rank_parameters(spec.model, spec.parallel)))


def state_of(spec: RunSpec, count: int) -> StateBytes:
    """State of a rank that holds `count` parameters before ZeRO divides them, and where it rests."""
    parallel = spec.parallel
    state = model_state(
        count,
        spec.precision,
        parallel.zero,
        parallel.dp_shard * parallel.cp,
        spec.train.accumulation,
        pipelined=parallel.pp > 1,
        reshards=parallel.pp == 1 or reshards(parallel.pp_schedule),
        offloaded=spec.offload.params != "none",
    )
    return offloaded(state, spec.offload, shard_groups(spec, count))


def shard_groups(spec: RunSpec, count: int) -> ShardGroups:
    """What stage 3 gathers at a time, of a rank that holds `count` parameters in one pipeline stage."""
    model, parallel = spec.model, spec.parallel
    shards = parallel.dp_shard * parallel.cp
    if not isinstance(model, ModelSpec):
        return ShardGroups(-(-count // shards), 0, 0)
    block = layer_parameters(model, parallel.tp)
    return ShardGroups(-(-(count - model.layers * block) // shards), -(-block // shards), model.layers)


@lru_cache(maxsize=1024)
def rank_parameters(model: ModelSpec, parallel: ParallelSpec) -> tuple[int, ...]:
    """Number of parameters of a rank before ZeRO divides them, by its place in the pipeline.

    Matrices are divided over tp, of which the first rank has the most rows of the vocabulary; norms are not.
    """
    if parallel.pp == 1:
        return (stage_parameters(model, Stage(0, 1, 0, model.layers), parallel.tp),)
    whole = stages(parallel.pp_layers)
    return tuple(
        _held(model, [whole[i] for i in stages_of(parallel.pp_schedule, parallel.pp, rank)], parallel)
        for rank in range(parallel.pp)
    )


def _held(model: ModelSpec, own: list[Stage], parallel: ParallelSpec) -> int:
    total = sum(stage_parameters(model, stage, parallel.tp) for stage in own)
    both_ends = own[0].is_first and own[-1].is_last
    twice = model.tied_embedding and both_ends and not _keeps_twins(parallel)
    return total - (_embedding(model, parallel.tp) if twice else 0)


def _keeps_twins(parallel: ParallelSpec) -> bool:
    """Stage 3 gathers each pipeline stage by itself, so that a tied parameter of two is there twice."""
    return parallel.zero == 3 and parallel.dp_shard * parallel.cp > 1


def stage_parameters(model: ModelSpec, stage: Stage, tp: int) -> int:
    """Number of parameters of one of `tp` ranks that hold a stage."""
    ends = stage.is_first + (stage.is_last and not (model.tied_embedding and stage.is_first))
    final_norm = model.hidden * stage.is_last
    layers = (stage.stop - stage.start) * layer_parameters(model, tp)
    return layers + ends * _embedding(model, tp) + final_norm


def layer_parameters(model: ModelSpec, tp: int) -> int:
    """Number of parameters of one of `tp` ranks that hold a layer."""
    norms = 2 * model.hidden
    return norms + (layer_parameter_count(model) - norms) // tp


def _embedding(model: ModelSpec, tp: int) -> int:
    return -(-model.vocab // tp) * model.hidden
