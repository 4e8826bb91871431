"""What ZeRO's engines hold beside state while a step runs: buckets on their way, gathered layers. Pure.

Legend: N ranks that divide state, w bytes of a working weight, b parameters of a block, r of what lies outside of the
blocks (embedding, last norm, head).

Stages 0 to 2 (`distperf.parallel.flat`) keep their buffers from the first step on. Stage 3
(`distperf.parallel.sharded`) has r gathered for a whole step, and a block while it computes; gradients are whole until
they are reduced in fp32, a block's behind its backward pass, those of r at the end.
"""

from __future__ import annotations

from dataclasses import dataclass

# As in distperf.parallel.buckets and distperf.parallel.flat; a test holds them together.
BUCKET_BYTES = 12 * 2**20
REDUCING = 2


@dataclass(frozen=True)
class Engine:
    """How a rank divides its state, and the numbers of parameters that matter for what it has on the way.

    `copies`: ranks with the same shard (dp_replicate). `native`: collectives are NCCL's, which reduce in fp32.
    """

    stage: int
    shards: int
    copies: int
    width: int
    pipelined: bool
    accumulates: bool
    reshards: bool
    native: bool
    total: int
    block: int
    matrix: int  # the largest of a block
    table: int  # a matrix of the vocabulary
    outside: int
    largest_stage: int
    has_head: bool


@dataclass(frozen=True)
class Transient:
    """Bytes at a moment of a step."""

    gathered_bytes: int = 0
    buckets_bytes: int = 0
    absent_bytes: int = 0  # gradients that are not there yet; shards that rest on drives


def transient(engine: Engine, moment: str) -> Transient:
    """What is there at "loss", "head", "block", "later block", "first block" or "embedding", in this order."""
    return _sharded(engine, moment) if engine.stage == 3 else Transient(0, _flat(engine, moment))


def _flat(engine: Engine, moment: str) -> int:
    """Buffers that gradients are put in (stage 2), those of other ranks' slices, and in a pipeline whole gradients."""
    width = engine.width
    ordinary = min(engine.total, max(BUCKET_BYTES // width, engine.matrix))
    large = engine.table if engine.table > ordinary else 0
    rest = max(ordinary, engine.total - 2 * large)  # the last bucket is as long as what is left
    lent = width * (large + min((REDUCING + 1) * ordinary, rest)) if engine.stage == 2 else 0
    peers = engine.shards if engine.shards > 1 else engine.copies
    reduced = large + min(REDUCING * ordinary, rest)
    if peers == 1:
        received = 0
    elif engine.native:
        received = 4 * reduced
    else:
        received = width * reduced * (peers - 1) // peers
    whole = 0
    if engine.pipelined and moment in ("first block", "embedding"):
        later = engine.table if moment == "first block" and not engine.has_head else 0
        whole = width * (engine.largest_stage - later)
    return lent + received + whole


def _sharded(engine: Engine, moment: str) -> Transient:
    """Gathered weights, and gradients before and while they are reduced."""
    width, block, outside = engine.width, engine.block, engine.outside
    reduced = 4 if engine.native else 4 + 4 * (engine.shards - 1) / engine.shards
    gathered, buckets = width * outside, 0.0
    if moment in ("block", "later block", "first block"):
        gathered += 2 * width * block
        buckets = width * engine.table if engine.has_head else 0
        if moment != "block":
            buckets += (width + (0 if engine.pipelined else reduced)) * block  # of the one behind
    elif moment == "embedding":
        buckets = width * outside + reduced * (max(outside, block) if engine.pipelined else outside)
    if engine.pipelined:  # gradients wait, whole, for the last micro-batch's backward pass
        buckets += 4 * engine.total
    absent = 0
    if not (engine.pipelined or engine.accumulates):
        absent = {"first block": outside, "embedding": 0}.get(moment, engine.total)
    return Transient(gathered if engine.reshards else 0, int(buckets), 4 * -(-absent // engine.shards))
