"""What is in memory, at a moment of a step, of state that rests on drives. Pure.

Optimizer state passes through a few buffers that stay (`distperf.offload.disk`). Of weights and gradients, the shards
of a few layers come and go (`distperf.offload.shelf`): the plan of state has them at their peak, and at most moments
there are fewer.
"""

from __future__ import annotations

from dataclasses import replace

from distperf.recipe.offload_rules import GRADIENTS_THERE, WEIGHTS_THERE, ShardGroups
from distperf.recipe.planner.transient import BUCKET_BYTES, Engine, Transient
from distperf.recipe.runspec import RunSpec

# As in distperf.offload.spans and distperf.offload.disk; a test holds them together.
SPAN = 1 << 20
AHEAD = 2


def buffers_bytes(spec: RunSpec, engine: Engine) -> int:
    """Of optimizer state's, on a rank that is the host itself: the longest spans, as many as move at a time."""
    if spec.offload.optimizer != "nvme":
        return 0
    if engine.stage == 3:  # spans are of one parameter's rows
        longest = max(engine.table, engine.matrix) // engine.shards
    else:
        longest = max(engine.table, min(engine.total, BUCKET_BYTES // engine.width)) // engine.shards
    longest = min(SPAN, longest)
    spans = (
        -(-engine.total // engine.shards // longest) + 1
    )  # of several buckets, the last of each is shorter
    return min(2 * AHEAD * len(spec.offload.path) + 1, spans) * kinds(spec) * 4 * longest


def kinds(spec: RunSpec) -> int:
    """Tensors of a span's state: the moments, and fp32 weights where the working copy is narrower."""
    return 2 if spec.precision == "fp32" or spec.parallel.zero == 3 else 3


def with_shelves(found: Transient, groups: ShardGroups, moment: str, *, accumulates: bool) -> Transient:
    """What stage 3 has at a moment, where shards rest on drives.

    Going backward the layer before is read while one is at work, and gradients of those behind are written; the last
    of the micro-batch before stay until then.
    """
    blocks = (2 + GRADIENTS_THERE) * groups.block
    before = groups.window(GRADIENTS_THERE - 1) if accumulates else 0
    there = {
        "loss": before,
        "head": 2 * groups.block + before,
        "block": 2 * groups.block + before,
        "later block": blocks,
        "first block": blocks,
        "embedding": groups.outside + groups.window(GRADIENTS_THERE),
        "update": groups.window(WEIGHTS_THERE) + groups.window(2),
    }
    peak = groups.window(WEIGHTS_THERE) + groups.window(GRADIENTS_THERE)
    return replace(found, absent_bytes=4 * (peak - min(peak, there[moment])))
