"""Seconds of a step, from arithmetic, bytes sent by axis, and the pipeline's bubble. Pure.

A first estimate: what is not given or measured comes from data sheets, and assumptions have names below. The bytes are
those of the `Cost:` lines of distperf.parallel; a rank sends them over its hosts' network where the axis crosses hosts.

Legend: N ranks of an axis, n parameters of a rank, w bytes of a working weight, T positions of a micro-batch on a rank.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from distperf.recipe.holdings import rank_parameters
from distperf.recipe.planner.hardware import Hardware
from distperf.recipe.planner.memory import WIDTHS, shape_of
from distperf.recipe.runspec import ModelSpec, ParallelSpec, RunSpec
from distperf.recipe.schedules import rank_of
from distperf.recipe.stages import model_costs, stages
from distperf.recipe.timeline import bubble_share

# Of a data sheet's matrix FLOP/s, what a model's layers get: large products reach 0.7 to 0.8, what is between them
# adds time. Of a link's bytes, what collectives get.
COMPUTE_SHARE = 0.6
LINK_SHARE = 0.7
# Reductions and gathers of ZeRO run beside computation: this part of it can hide them.
HIDING_SHARE = 0.8
# Arithmetic beside forward and backward (3 parts together), in parts of the forward pass.
RECOMPUTED = {"none": 0.0, "selective": 0.05, "full": 1.0}


@dataclass(frozen=True)
class StepTime:
    """Where a step's seconds go. What is hidden behind computation is not in them."""

    compute_s: float
    tensor_s: float  # tp and cp: inside of layers, nothing to hide behind
    data_s: float  # ZeRO's and dp_replicate's, beyond what computation hides
    pipeline_s: float  # sending between stages
    bubble_s: float
    update_s: float

    @property
    def step_s(self) -> float:
        """All of it."""
        return sum(self.terms().values())

    def terms(self) -> dict[str, float]:
        """Seconds by name."""
        return {
            "compute": self.compute_s,
            "tensor": self.tensor_s,
            "data": self.data_s,
            "pipeline": self.pipeline_s,
            "bubble": self.bubble_s,
            "update": self.update_s,
        }

    @property
    def limit(self) -> str:
        """The largest term."""
        terms = self.terms()
        return max(terms, key=terms.__getitem__)


def step_time(spec: RunSpec, hardware: Hardware, ranks_per_host: int) -> StepTime | None:
    """None where the model is only known to its own code, or nothing is known of the hosts' speed."""
    model = spec.model
    if not isinstance(model, ModelSpec) or not hardware.flops:
        return None
    parallel, accumulation = spec.parallel, spec.train.accumulation
    compute = accumulation * _pass_flops(spec, model) / (hardware.flops * COMPUTE_SHARE)
    sends = bytes_sent(spec, model, hardware)
    rates = _rates(parallel, hardware, ranks_per_host)
    seconds = {axis: amount / rates[axis] for axis, amount in sends.items()}
    tensor = seconds["tp"] + seconds["cp"]
    data = seconds["dp_shard"] + seconds["dp_replicate"]
    hidden = HIDING_SHARE * compute
    share = bubble_share(parallel.pp_schedule, parallel.pp, accumulation) if parallel.pp > 1 else 0.0
    busy = compute + tensor
    return StepTime(
        compute_s=compute,
        tensor_s=tensor,
        data_s=max(0.0, data - hidden) if parallel.pp == 1 else data,
        pipeline_s=seconds["pp"],
        bubble_s=busy * share / (1 - share),
        update_s=_update_s(spec, model, hardware),
    )


def _pass_flops(spec: RunSpec, model: ModelSpec) -> float:
    """Forward and backward of one micro-batch on the rank of the pipeline that computes most."""
    parallel = spec.parallel
    costs = model_costs(model, spec.data.seq_len)
    by_rank = [0.0] * parallel.pp
    if parallel.pp == 1:
        by_rank[0] = sum(costs.layers) + costs.head
    for stage in stages(parallel.pp_layers):
        by_rank[rank_of(parallel.pp_schedule, parallel.pp, stage.index)] += costs.of(stage)
    positions = spec.train.micro_batch * spec.data.seq_len / parallel.cp / parallel.tp
    return (3 + RECOMPUTED[spec.activation_checkpoint]) * positions * max(by_rank)


def bytes_sent(spec: RunSpec, model: ModelSpec, hardware: Hardware) -> dict[str, float]:
    """Axis -> bytes that a rank sends in a step."""
    parallel, accumulation = spec.parallel, spec.train.accumulation
    shape, width = shape_of(spec, model, hardware), WIDTHS[spec.precision]
    count = max(rank_parameters(model, parallel))
    layers = max(parallel.pp_layers) if parallel.pp > 1 else model.layers
    stream = shape.positions * model.hidden * width
    repeats = 1.5 if spec.activation_checkpoint == "full" else 1.0  # what layers send is sent again
    keys = shape.keys
    around = (
        2 * (model.hidden + keys) * shape.positions * width
        if shape.exchanged
        else 6 * keys * shape.positions * width
    )
    return {
        "tp": accumulation * repeats * layers * 8 * _ring(parallel.tp) * stream,
        "cp": accumulation * repeats * layers * 2 * _ring(parallel.cp) * around / parallel.tp,
        "pp": accumulation * 2 * stream / parallel.tp if parallel.pp > 1 else 0.0,
        "dp_shard": _zero_bytes(spec, count, width, hardware),
        "dp_replicate": 2 * _ring(parallel.dp_replicate) * count / (parallel.dp_shard * parallel.cp) * 4,
    }


def _ring(size: int) -> float:
    """(N - 1) / N."""
    return (size - 1) / size


def _zero_bytes(spec: RunSpec, count: int, width: int, hardware: Hardware) -> float:
    """Reducing gradients, and gathering weights: once a step, but for what is divided further."""
    parallel, accumulation = spec.parallel, spec.train.accumulation
    shards = parallel.dp_shard * parallel.cp
    reduced = 4 if hardware.fused else width  # NCCL reduces in fp32
    if parallel.zero == 3 and shards > 1:
        times = accumulation if parallel.pp == 1 else 1
        return _ring(shards) * count * (times * 4 + 2 * accumulation * width)
    reductions = accumulation if parallel.zero == 2 and parallel.pp == 1 else 1
    return _ring(shards) * count * (reductions * reduced + width)


def _rates(parallel: ParallelSpec, hardware: Hardware, ranks_per_host: int) -> Mapping[str, float]:
    """Axis -> bytes a second: of the host's links where all ranks of an axis are on one host."""
    inside = (hardware.link_rate or float("inf")) * LINK_SHARE
    outside = (hardware.network_rate or hardware.link_rate or float("inf")) * LINK_SHARE
    rates, span = {}, 1
    for axis, size in reversed(parallel.mesh.sizes().items()):
        span *= size
        rates[axis] = inside if span <= ranks_per_host else outside
    return rates


def _update_s(spec: RunSpec, model: ModelSpec, hardware: Hardware) -> float:
    """Adam reads weights, gradients and two moments and writes all but the gradients: 28 bytes a parameter."""
    parallel = spec.parallel
    shards = parallel.dp_shard * parallel.cp if parallel.zero else 1
    count = max(rank_parameters(model, parallel)) / shards
    return 28 * count / hardware.memory_rate if hardware.memory_rate else 0.0
