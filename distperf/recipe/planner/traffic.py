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
    stream = shape.positions * model.hidden * width
    repeats = 1.5 if spec.activation_checkpoint == "full" else 1.0  # what layers send is sent again
    passes = ceil(accumulation * repeats * layers)
    keys = shape.keys
    around = (
        2 * (model.hidden + keys) * shape.positions * width
        if shape.exchanged
        else 6 * keys * shape.positions * width
    )
    tensor = 4 * accumulation * repeats * layers * _ring(parallel.tp) * stream
    context = accumulation * repeats * layers * 2 * _ring(parallel.cp) * around / parallel.tp
    turns = 8 if shape.exchanged else 6 * (parallel.cp - 1)
    return [
        Sent(TP, "all_gather", tensor, 4 * passes),
        Sent(TP, "reduce_scatter", tensor, 4 * passes),
        Sent(CP, "all_to_all" if shape.exchanged else "link", context, turns * passes),
        Sent(PP, "link", accumulation * 2 * stream / parallel.tp, 2 * accumulation),
    ]


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
