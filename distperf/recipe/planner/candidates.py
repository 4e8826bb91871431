"""Other ways to run the same training on the same ranks, ranked; and the largest model that fits. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf, log

from distperf.errors import MeshError
from distperf.recipe.estimate import parameter_count
from distperf.recipe.offload_rules import goes_with
from distperf.recipe.planner.hardware import Hardware
from distperf.recipe.planner.memory import Memory, memory
from distperf.recipe.planner.settle import micro_batches, modes, with_micro_batch, with_tier
from distperf.recipe.planner.steptime import StepTime, step_time
from distperf.recipe.planner.tiers import TIERS, tiers_of
from distperf.recipe.runspec import ModelSpec, OffloadSpec, RunSpec
from distperf.recipe.schedules import stage_count
from distperf.recipe.stages import layers_per_stage, model_costs
from distperf.recipe.tensor_rules import indivisible, llama_units

# ZeRO-2 first: it divides gradients and optimizer state at no more communication than plain data parallelism. Then
# stage 3, which sends half as much again, and those that divide less.
STAGES = (2, 3, 1, 0)
MOST_MICRO_BATCH = 16
MOST_STAGES = 64
# Times that differ by less are taken for equal: the estimate is no better.
RESOLUTION = 0.03
HEAD_SIZE = 128


@dataclass(frozen=True)
class Candidate:
    """A run, and what it would take."""

    spec: RunSpec
    memory: Memory
    time: StepTime | None
    room: int | None  # bytes that a rank may fill

    @property
    def fits(self) -> bool | None:
        """None where it is not known what is there."""
        return None if self.room is None else self.memory.total_bytes <= self.room

    @property
    def reason(self) -> str:
        """What decides: what is too large, or what the step's time goes into."""
        if self.fits is False:
            name, size = max(self.memory.terms().items(), key=lambda term: term[1])
            over = self.memory.total_bytes - (self.room or 0)
            return f"{over / 2**30:.1f} GiB too much; most of it {name}, {size / 2**30:.1f} GiB"
        if self.time is None:
            return f"at most when {_WHEN[self.memory.moment]}"
        share = self.time.terms()[self.time.limit] / self.time.step_s
        return f"{share:.0%} of the time goes into {_WHAT[self.time.limit]}"


_WHEN = {
    "loss": "the loss is computed",
    "head": "the head goes backward",
    "block": "the last layer goes backward",
    "later block": "the layer before the last goes backward",
    "first block": "the first layer goes backward",
    "embedding": "the embedding goes backward",
    "update": "weights are updated",
}
_WHAT = {
    "compute": "arithmetic",
    "tensor": "communication inside layers (tp, cp)",
    "data": "communication of gradients and weights (dp)",
    "pipeline": "sending between stages",
    "bubble": "the pipeline's bubble",
    "update": "the optimizer",
    "offload": "transfer between tiers",
}


def evaluate(spec: RunSpec, hardware: Hardware, ranks_per_host: int) -> Candidate | None:
    """What a run would take; None for a model that only its own code knows."""
    planned = memory(spec, hardware)
    if planned is None:
        return None
    return Candidate(spec, planned, step_time(spec, hardware, ranks_per_host), hardware.memory_bytes)


def ranked(spec: RunSpec, hardware: Hardware, ranks_per_host: int) -> list[Candidate]:
    """The run's alternatives, itself among them: those that fit first, the fastest of them first."""
    tried = alternatives(spec, ranks_per_host, tiers=tiers_of(spec, hardware, params=True))
    found = (evaluate(each, hardware, ranks_per_host) for each in tried)
    return sorted((c for c in found if c is not None), key=_rank)


def _rank(candidate: Candidate) -> tuple[object, ...]:
    spec, total = candidate.spec, candidate.memory.total_bytes
    if candidate.fits is False:
        return (1, total)
    parallel = spec.parallel
    tier = (TIERS.index(spec.offload.optimizer), TIERS.index(spec.offload.params))
    order = (tier, STAGES.index(parallel.zero), parallel.tp * parallel.pp, -spec.train.micro_batch)
    if candidate.time is None:  # slow ways last: what nobody has measured of drives, then recomputation
        return (0, inf, tier, modes(spec).index(spec.activation_checkpoint), *order, total)
    return (0, round(log(candidate.time.step_s) / RESOLUTION), *order, total)


def alternatives(
    spec: RunSpec,
    ranks_per_host: int,
    most_micro_batch: int = MOST_MICRO_BATCH,
    tiers: Sequence[OffloadSpec] = (),
) -> Iterator[RunSpec]:
    """Every ZeRO stage, tp, pp, micro-batch and checkpointing that the ranks and the global batch take.

    tiers: where state may rest, if not only where the run's own does.
    """
    meshes = (mesh for tier in tiers or (spec.offload,) for mesh in _meshes(spec, ranks_per_host, tier))
    for mesh in meshes:
        for size in micro_batches(mesh, most_micro_batch):
            if size & (size - 1) and size != spec.train.micro_batch:
                continue
            for mode in modes(mesh):
                yield replace(with_micro_batch(mesh, size), activation_checkpoint=mode)


def _meshes(spec: RunSpec, ranks_per_host: int, tier: OffloadSpec) -> Iterator[RunSpec]:
    model, parallel, batch = spec.model, spec.parallel, spec.train.global_batch
    if not isinstance(model, ModelSpec):
        return
    for tp in sorted({parallel.tp, *_powers(ranks_per_host)}):
        for pp in sorted({parallel.pp, *_powers(min(MOST_STAGES, model.layers))}):
            shards, rest = divmod(spec.world_size, tp * pp * parallel.cp * parallel.dp_replicate)
            share, odd = divmod(batch, max(1, shards) * parallel.dp_replicate)
            if rest or odd or not shards or not _divides(spec, model, tp, pp):
                continue
            layers = _layers(spec, model, pp)
            alone = shards * parallel.cp == 1 and spec.world_size > 1
            train = replace(spec.train, micro_batch=1, accumulation=share)
            for zero in STAGES:
                if (
                    (zero == 2 and pp > 1)
                    or not goes_with(tier, zero, pp)
                    or (tier.params != "none" and alone)
                ):
                    continue  # runs as stage 1; is refused
                axes = replace(parallel, zero=zero, tp=tp, pp=pp, dp_shard=shards, pp_layers=layers)
                yield replace(with_tier(spec, tier), parallel=axes, train=train)


def _powers(most: int) -> Iterator[int]:
    return (1 << n for n in range(most.bit_length()))


def _divides(spec: RunSpec, model: ModelSpec, tp: int, pp: int) -> bool:
    units = llama_units(
        heads=model.heads, kv_heads=model.kv_heads, ffn=model.ffn,
        seq_len=spec.data.seq_len, pieces=2 * spec.parallel.cp if spec.parallel.cp > 1 else 1,
    )  # fmt: skip
    return indivisible(tp, units) is None and stage_count(spec.parallel.pp_schedule, pp) <= model.layers


def _layers(spec: RunSpec, model: ModelSpec, pp: int) -> tuple[int, ...]:
    """As the recipe says for its own pp, else by cost; of very deep pipelines evenly, which is close to it."""
    parallel = spec.parallel
    if pp == parallel.pp or pp == 1:
        return parallel.pp_layers if pp > 1 else ()
    count = stage_count(parallel.pp_schedule, pp)
    if count * model.layers > 400:
        each, more = divmod(model.layers, count)
        return tuple(each + (index < more) for index in range(count))
    try:
        return layers_per_stage(model_costs(model, spec.data.seq_len), parallel.pp_schedule, pp, None)
    except MeshError:
        return ()


def largest_model(spec: RunSpec, hardware: Hardware, ranks_per_host: int) -> Candidate | None:
    """The largest model of the recipe's proportions that fits in any way; None where not even the smallest does.

    Width is scaled in steps of eight heads of 128 (of one, below 1,024), depth with it; then layers are added.
    """
    model, best = spec.model, None
    if not isinstance(model, ModelSpec) or hardware.memory_bytes is None:
        return None
    widths = [*range(HEAD_SIZE, 1024, HEAD_SIZE), *range(1024, 65536 + 1, 1024)]
    low, high = 0, len(widths)
    while low < high:  # widths before `low` fit, those from `high` on do not
        middle = (low + high) // 2
        found = _any_fit(spec, _scaled(model, widths[middle]), hardware, ranks_per_host)
        best, low, high = (found, middle + 1, high) if found else (best, low, middle)
    if best is None:
        return None
    shape = best.spec.model
    assert isinstance(shape, ModelSpec)
    low, high = shape.layers, 2 * shape.layers
    while low + 1 < high:
        middle = (low + high) // 2
        found = _any_fit(spec, replace(shape, layers=middle), hardware, ranks_per_host)
        best, low, high = (found, middle, high) if found else (best, low, middle)
    return best


def _scaled(model: ModelSpec, hidden: int) -> ModelSpec:
    heads = hidden // HEAD_SIZE
    grouped = model.kv_heads < model.heads and heads % 8 == 0
    return replace(
        model,
        hidden=hidden,
        heads=heads,
        kv_heads=8 if grouped else heads,
        ffn=max(256, round(hidden * model.ffn / model.hidden / 256) * 256),
        layers=max(1, round(hidden * model.layers / model.hidden)),
    )


def _any_fit(spec: RunSpec, model: ModelSpec, hardware: Hardware, ranks_per_host: int) -> Candidate | None:
    """The fastest of the ways that spare most: micro-batches of one sequence, layers computed again."""
    axes = replace(spec.parallel, pp_layers=(), pp=1, tp=1)
    start = replace(spec, model=model, parallel=axes)
    sparing = [
        each
        for each in alternatives(start, ranks_per_host, most_micro_batch=1)
        if each.activation_checkpoint == modes(each)[-1] and each.parallel.zero in (1, 3)
    ]
    found = [evaluate(each, hardware, ranks_per_host) for each in sparing]
    fitting = [c for c in found if c is not None and c.fits]
    return min(fitting, key=_rank, default=None)


def parameters_of(candidate: Candidate) -> int:
    """How many parameters its model has."""
    assert isinstance(candidate.spec.model, ModelSpec)
    return parameter_count(candidate.spec.model)
