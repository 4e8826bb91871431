"""What a rank sends in a step, by axis: bytes as in the `Cost:` lines of distperf.parallel, and calls. Pure.

Legend: N ranks of an axis, n parameters of a rank, w bytes of a working weight, T positions of a micro-batch on a rank.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from distperf.recipe.holdings import rank_parameters
from distperf.recipe.planner.hardware import Hardware
from distperf.recipe.planner.memory import WIDTHS, shape_of
from distperf.recipe.planner.transient import BUCKET_BYTES
from distperf.recipe.runspec import ModelSpec, RunSpec

PP, TP, CP, DP_SHARD, DP_REPLICATE = "pp", "tp", "cp", "dp_shard", "dp_replicate"


@dataclass(frozen=True)
class Sent:
    """Bytes that a rank sends along an axis in a step, in so many calls of a collective (planner.rates)."""

    axis: str
    what: str
    bytes: float
    calls: int


def traffic(spec: RunSpec, model: ModelSpec, hardware: Hardware) -> list[Sent]:
    """Everything that is sent along axes of more than one rank."""
    found = [*_inside_layers(spec, model, hardware), *_of_state(spec, model, hardware)]
    sizes = spec.parallel.mesh.sizes()
    return [sent for sent in found if sizes[sent.axis] > 1]


def _inside_layers(spec: RunSpec, model: ModelSpec, hardware: Hardware) -> list[Sent]:
    parallel, accumulation = spec.parallel, spec.train.accumulation
    shape, width = shape_of(spec, model, hardware), WIDTHS[spec.precision]
    layers = max(parallel.pp_layers) if parallel.pp > 1 else model.layers
    passes = 1.5 if spec.activation_checkpoint == "full" else 1.0  # what layers send forward is sent again
    stream = shape.positions * model.hidden * width
    tensor = layer_bytes("tensor", model, shape.positions, width, parallel.tp)
    context = layer_bytes(parallel.cp_method, model, shape.positions * parallel.cp, width, parallel.cp)
    return [
        # embedding and head together send half of what a layer does, in as many turns
        Sent(TP, "tensor", accumulation * (passes * layers + 0.5) * tensor, accumulation * ceil(passes * layers + 1)),
        Sent(CP, parallel.cp_method, accumulation * passes * layers * context / parallel.tp,
             accumulation * ceil(passes * layers)),
        Sent(PP, "link", accumulation * 2 * stream / parallel.tp, 2 * accumulation),
    ]  # fmt: skip


def layer_bytes(what: str, model: ModelSpec, positions: int, width: int, ranks: int) -> float:
    """What a rank sends in a layer, forward and backward, that so many ranks divide ("tensor", "ulysses", "ring").

    positions: T, of the micro-batch on all of them. Source: the `Cost:` lines of distperf.parallel.tensor, .ulysses
    and .ring.
    """
    keys = model.hidden // model.heads * model.kv_heads
    if what == "tensor":
        return 8 * _ring(ranks) * positions * model.hidden * width
    if what == "ulysses":
        return 4 * _ring(ranks) * positions / ranks * (model.hidden + keys) * width
    return 2 * positions / ranks * keys * (2 * (ranks - 1) * width + ranks * 4)  # gradients travel in fp32


def _of_state(spec: RunSpec, model: ModelSpec, hardware: Hardware) -> list[Sent]:
    """Reducing gradients, and gathering weights: once a step, but for what is divided further."""
    parallel, accumulation, width = spec.parallel, spec.train.accumulation, WIDTHS[spec.precision]
    count = max(rank_parameters(model, parallel))
    shards, copies = parallel.dp_shard * parallel.cp, parallel.dp_replicate
    axis = DP_SHARD if parallel.dp_shard > 1 else CP
    reduced = 4 if hardware.fused else width  # NCCL reduces in fp32
    buckets = ceil(count * width / BUCKET_BYTES)
    share, copied = _ring(shards) * count, _ring(copies) * count / shards
    if parallel.zero == 3 and shards > 1:
        layers = model.layers + 1
        times = accumulation if parallel.pp == 1 else 1
        state = [
            Sent(axis, "reduce", share * times * 4, times * layers),
            Sent(axis, "gather", share * 2 * accumulation * width, 2 * accumulation * layers),
        ]
    else:
        reductions = accumulation if parallel.zero == 2 and parallel.pp == 1 else 1
        state = [
            Sent(axis, "reduce", share * reductions * reduced, reductions * buckets),
            Sent(axis, "gather", share * width, buckets),
        ]
    sums = [Sent(DP_REPLICATE, what, copied * 4, buckets) for what in ("reduce", "gather")]
    return [*state, *sums]


def _ring(size: int) -> float:
    """(N - 1) / N."""
    return (size - 1) / size
