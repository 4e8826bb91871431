"""Seconds of a step, from arithmetic, what is sent by axis, tiers, and the pipeline's bubble. Pure.

Rates are those that `distperf bench` measured (planner.rates). What is not measured comes from data sheets or from the
recipe, with assumptions that have names below. A rank sends over its hosts' network where an axis crosses hosts.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from distperf.recipe.holdings import rank_parameters
from distperf.recipe.planner import tiers
from distperf.recipe.planner.hardware import Hardware
from distperf.recipe.planner.memory import WIDTHS
from distperf.recipe.planner.rates import HOST, HOSTS
from distperf.recipe.planner.traffic import CP, DP_REPLICATE, DP_SHARD, PP, TP, Sent, traffic
from distperf.recipe.runspec import ModelSpec, ParallelSpec, RunSpec
from distperf.recipe.schedules import rank_of
from distperf.recipe.stages import Stage, model_costs, stages
from distperf.recipe.timeline import bubble_share

# Of a data sheet's matrix FLOP/s, what a model's layers get: large products reach 0.7 to 0.8, what is between them
# adds time. Of a link's bytes, what collectives get.
COMPUTE_SHARE = 0.6
LINK_SHARE = 0.7
# On devices reductions and gathers of ZeRO run beside computation: this part of it can hide them. On CPUs they want
# the cores that compute, and nothing is hidden.
HIDING_SHARE = 0.8
# Arithmetic of layers beside forward and backward (3 parts together), in parts of the forward pass.
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
    offload_s: float = 0.0  # to and from the tiers, beyond what passes and the update hide

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
            "offload": self.offload_s,
        }

    @property
    def limit(self) -> str:
        """The largest term."""
        terms = self.terms()
        return max(terms, key=terms.__getitem__)


@dataclass(frozen=True)
class Speed:
    """What a rank computes per second: FLOP of layers and of the head, and logits of the loss."""

    layers: float
    head: float
    logits: float


def step_time(spec: RunSpec, hardware: Hardware, ranks_per_host: int) -> StepTime | None:
    """None where the model is only known to its own code, or nothing is known of the hosts' speed."""
    model = spec.model
    speed = _speed(spec, model, hardware) if isinstance(model, ModelSpec) else None
    if not isinstance(model, ModelSpec) or speed is None:
        return None
    parallel, accumulation = spec.parallel, spec.train.accumulation
    compute = accumulation * _pass_s(spec, model, speed)
    sent = [
        (each.axis, _sent_s(each, parallel, hardware, ranks_per_host))
        for each in traffic(spec, model, hardware)
    ]
    tensor, data, pipeline = (
        sum(seconds for axis, seconds in sent if axis in axes)
        for axes in ((TP, CP), (DP_SHARD, DP_REPLICATE), (PP,))
    )
    hidden = HIDING_SHARE * compute if hardware.fused and parallel.pp == 1 else 0.0
    share = bubble_share(parallel.pp_schedule, parallel.pp, accumulation) if parallel.pp > 1 else 0.0
    update = _update_s(spec, model, hardware)
    offload = tiers.transfer_s(spec, model, hardware, compute, update)
    if offload is None:
        return None
    return StepTime(
        compute_s=compute,
        tensor_s=tensor,
        data_s=max(0.0, data - hidden),
        pipeline_s=pipeline,
        bubble_s=(compute + tensor) * share / (1 - share),
        update_s=update,
        offload_s=offload,
    )


def _speed(spec: RunSpec, model: ModelSpec, hardware: Hardware) -> Speed | None:
    """As measured, for layers of this width; else a part of what the recipe or the data sheet says."""
    rates, precision = hardware.rates, spec.precision
    if rates is not None:
        layers = rates.rate("layer", precision, model.hidden)
        head = rates.rate("matmul", precision, model.hidden)
        if layers is not None and head is not None:
            return Speed(layers, head, rates.rate("loss", precision) or inf)
    if not hardware.flops:
        return None
    return Speed(hardware.flops * COMPUTE_SHARE, hardware.flops * COMPUTE_SHARE, inf)


def _pass_s(spec: RunSpec, model: ModelSpec, speed: Speed) -> float:
    """Forward and backward of one micro-batch on the rank of the pipeline that computes most."""
    parallel, costs = spec.parallel, model_costs(model, spec.data.seq_len)
    positions = spec.train.micro_batch * spec.data.seq_len / parallel.cp / parallel.tp
    layer_s = (3 + RECOMPUTED[spec.activation_checkpoint]) * positions * costs.layers[0] / speed.layers
    head_s = positions * (3 * costs.head / speed.head + model.vocab / speed.logits)
    own = stages(parallel.pp_layers) if parallel.pp > 1 else (Stage(0, 1, 0, model.layers),)
    by_rank = [0.0] * parallel.pp
    for stage in own:
        seconds = (stage.stop - stage.start) * layer_s + head_s * stage.is_last
        by_rank[rank_of(parallel.pp_schedule, parallel.pp, stage.index) if parallel.pp > 1 else 0] += seconds
    return max(by_rank)


def _sent_s(sent: Sent, parallel: ParallelSpec, hardware: Hardware, ranks_per_host: int) -> float:
    """Seconds of what goes along an axis: inside the host where all its ranks are on one."""
    inside, rates = _span(parallel, sent.axis) <= ranks_per_host, hardware.rates
    link = hardware.link_rate if inside else hardware.network_rate or hardware.link_rate
    if rates is not None:
        seconds = rates.seconds(sent.what, HOST if inside else HOSTS, sent.bytes, sent.calls)
        if seconds is None and link is None:  # one host was measured, and there are to be several
            seconds = rates.seconds(sent.what, HOST, sent.bytes, sent.calls)
        if seconds is not None:
            return seconds
    return sent.bytes / (LINK_SHARE * link) if link else 0.0


def _span(parallel: ParallelSpec, axis: str) -> int:
    """How many neighbouring ranks a group of an axis reaches over."""
    span = 1
    for name, size in reversed(parallel.mesh.sizes().items()):
        span *= size
        if name == axis:
            break
    return span


def _update_s(spec: RunSpec, model: ModelSpec, hardware: Hardware) -> float:
    """Adam reads weights, gradients and two moments and writes all but the gradients: 28 bytes a parameter.

    Beside fp32 masters it casts gradients and weights. Where memory's rate was measured, gradients are also counted
    on their way into buckets, for every micro-batch, and once more for their norm.
    """
    parallel, width, rates = spec.parallel, WIDTHS[spec.precision], hardware.rates
    count = max(rank_parameters(model, parallel))
    shards = parallel.dp_shard * parallel.cp if parallel.zero else 1
    each = 28 if width == 4 or parallel.zero == 3 else 36
    updating, copying = (rates.rate("update"), rates.rate("copy")) if rates is not None else (None, None)
    if updating is None or copying is None:
        return each * count / shards / hardware.memory_rate if hardware.memory_rate else 0.0
    moved = 2 * width * spec.train.accumulation * count + width * count / shards
    return each * count / shards / updating + moved / copying
