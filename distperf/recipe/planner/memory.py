"""Bytes on the rank that holds most, at the worst moment of a step, term by term. Pure.

A step has a few moments that can be the worst: behind the loss, in the head's backward pass, in a block's, and in the
embedding's. What is there at each is added up, and the largest sum counts. A model that only its own code knows has no
plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import mul

from distperf.recipe.estimate import StateBytes
from distperf.recipe.holdings import (
    layer_parameters,
    rank_parameters,
    shard_groups,
    stage_parameters,
    state_of,
)
from distperf.recipe.planner import activations
from distperf.recipe.planner.activations import Shape
from distperf.recipe.planner.drives import buffers_bytes, with_shelves
from distperf.recipe.planner.hardware import Hardware
from distperf.recipe.planner.transient import Engine, Transient, transient
from distperf.recipe.runspec import ModelSpec, ParallelSpec, RunSpec
from distperf.recipe.schedules import SCHEDULES, reshards
from distperf.recipe.stages import Stage, held_stages
from distperf.recipe.timeline import Held, held_at_backward

WIDTHS = {"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 2}
TOKEN_BYTES = 8
CHECKPOINT_BYTES = 12  # of a parameter: fp32 weight, and Adam's two moments
DEEP = 8  # stages; of more, only some are looked at

# A rank's process with torch and gloo loaded, before it has a model: 0.3 GiB on Linux with torch 2.13 for CPUs. On a
# GPU: its context, cuBLAS and NCCL; not measured here.
CPU_RUNTIME_BYTES = 300 * 2**20
GPU_RUNTIME_BYTES = 2**30
# What allocators hold beyond what is asked of them, of all that comes and goes in a step.
ALLOCATOR_SHARE = 0.05

_ALWAYS = {"parameters", "gradients", "optimizer", "activations of layers", "logits and loss"}


@dataclass(frozen=True)
class Memory:
    """One rank's bytes at its worst moment. `logits_bytes` are a part of the activations."""

    pp: int  # its place in the pipeline
    moment: str
    state: StateBytes
    activations_bytes: int
    logits_bytes: int
    gathered_bytes: int
    buckets_bytes: int
    batch_bytes: int
    absent_bytes: int  # gradients that are not there yet at this moment; shards that are on drives
    runtime_bytes: int
    snapshot_bytes: int  # a checkpoint's copy in host memory, written beside training
    kept_bytes: int  # checkpoints in the host's memory: this rank's, and as many copies for others
    on_device: bool  # what is offloaded is elsewhere

    @property
    def state_bytes(self) -> int:
        """Parameters, gradients and optimizer state."""
        return self.state.parameters_bytes + self.state.gradients_bytes + self.state.optimizer_bytes

    @property
    def offloaded_bytes(self) -> int:
        """What is in the host's memory where that is the rank's own, on a CPU: offloaded state, checkpoints."""
        return 0 if self.on_device else self.state.host_bytes + self.snapshot_bytes + self.kept_bytes

    @property
    def transient_bytes(self) -> int:
        """What comes and goes in a step."""
        return self.activations_bytes + self.gathered_bytes + self.buckets_bytes + self.batch_bytes

    @property
    def allocator_bytes(self) -> int:
        """What the allocator holds beyond it."""
        return int(ALLOCATOR_SHARE * self.transient_bytes)

    @property
    def other_bytes(self) -> int:
        """All but state and activations."""
        return self.total_bytes - self.state_bytes - self.activations_bytes

    @property
    def total_bytes(self) -> int:
        """Everything."""
        there = self.state_bytes + self.offloaded_bytes - self.absent_bytes + self.transient_bytes
        return there + self.allocator_bytes + self.runtime_bytes

    def terms(self) -> dict[str, int]:
        """Every term by its name, those without bytes left out but for state and activations."""
        terms = {
            "parameters": self.state.parameters_bytes,
            "gradients": self.state.gradients_bytes,
            "optimizer": self.state.optimizer_bytes,
            "offloaded, in host memory": 0 if self.on_device else self.state.host_bytes,
            "checkpoint's copy": 0 if self.on_device else self.snapshot_bytes,
            "checkpoints in memory": 0 if self.on_device else self.kept_bytes,
            "activations of layers": self.activations_bytes - self.logits_bytes,
            "logits and loss": self.logits_bytes,
            "gathered weights": self.gathered_bytes,
            "buckets": self.buckets_bytes,
            "batch": self.batch_bytes,
            "allocator": self.allocator_bytes,
            "runtime": self.runtime_bytes,
            "not there at that moment": -self.absent_bytes,
        }
        return {name: size for name, size in terms.items() if size or name in _ALWAYS}


def memory(spec: RunSpec, hardware: Hardware) -> Memory | None:
    """The fullest rank's; None for a model that only its own code knows."""
    by_place = memories(spec, hardware, _likely(spec.parallel))
    return max(by_place, key=lambda m: m.total_bytes) if by_place else None


def memories(spec: RunSpec, hardware: Hardware, places: Sequence[int] = ()) -> tuple[Memory, ...]:
    """Of a rank at each place of the pipeline (or some); empty for a model that only its own code knows."""
    if not isinstance(spec.model, ModelSpec):
        return ()
    places = places or range(spec.parallel.pp)
    return tuple(_of_place(spec, spec.model, pp, hardware) for pp in places)


def _likely(parallel: ParallelSpec) -> tuple[int, ...]:
    """Places of a deep pipeline that can be the fullest: both ends, and where most layers are."""
    if parallel.pp <= DEEP or SCHEDULES[parallel.pp_schedule].stages_per_rank > 1:
        return ()
    return (0, 1, parallel.pp - 1, parallel.pp_layers.index(max(parallel.pp_layers)))


def _of_place(spec: RunSpec, model: ModelSpec, pp: int, hardware: Hardware) -> Memory:
    count = rank_parameters(model, spec.parallel)[pp]
    own = _stages(spec, model, pp)
    shape = shape_of(spec, model, hardware)
    engine = _engine(spec, model, own, count, hardware)
    shelved = shard_groups(spec, count) if spec.offload.params == "nvme" else None
    buffers = 0 if hardware.fused else buffers_bytes(spec, engine)
    moments = _moments(spec, shape, own, pp) | ({"update": (0, 0)} if shelved else {})
    found: list[Memory] = []
    for moment, (live, logits) in moments.items():
        extra = Transient() if moment == "update" else transient(engine, moment)
        if shelved is not None:
            extra = with_shelves(extra, shelved, moment, accumulates=engine.accumulates)
        found.append(
            Memory(
                pp=pp,
                moment=moment,
                state=state_of(spec, count),
                activations_bytes=live,
                logits_bytes=logits,
                gathered_bytes=extra.gathered_bytes,
                buckets_bytes=extra.buckets_bytes + buffers,
                batch_bytes=_batch_bytes(spec, shape),
                absent_bytes=extra.absent_bytes,
                runtime_bytes=GPU_RUNTIME_BYTES if hardware.fused else CPU_RUNTIME_BYTES,
                snapshot_bytes=_snapshot_bytes(spec, count),
                kept_bytes=_kept_bytes(spec, count),
                on_device=hardware.fused,
            )
        )
    return max(found, key=lambda m: m.total_bytes)


def shape_of(spec: RunSpec, model: ModelSpec, hardware: Hardware) -> Shape:
    """A micro-batch on one rank."""
    parallel = spec.parallel
    return Shape(
        model,
        positions=spec.train.micro_batch * spec.data.seq_len // parallel.cp,
        width=WIDTHS[spec.precision],
        tp=parallel.tp,
        exchanged=parallel.cp > 1 and parallel.cp_method == "ulysses",
        fused=hardware.fused,
    )


def _stages(spec: RunSpec, model: ModelSpec, pp: int) -> tuple[Stage, ...]:
    parallel = spec.parallel
    if parallel.pp == 1:
        return (Stage(0, 1, 0, model.layers),)
    return held_stages(parallel.pp_layers, parallel.pp_schedule, parallel.pp, pp)


def _moments(spec: RunSpec, shape: Shape, own: tuple[Stage, ...], pp: int) -> dict[str, tuple[int, int]]:
    """Moment -> the most bytes of activations, and which of them are logits' and the loss's."""
    parallel, found = spec.parallel, dict[str, tuple[int, int]]()
    held: dict[int, tuple[Held, ...]] = {0: (Held((1,), (0,)),)}
    if parallel.pp > 1:
        held = held_at_backward(parallel.pp_schedule, parallel.pp, spec.train.accumulation, pp)
    kept = [_stage_kept(spec, shape, stage) for stage in own]
    put_off = [_put_off(shape, stage) for stage in own]
    for stage in own:
        for state in held[stage.index]:
            live = sum(map(mul, state.whole, kept)) + sum(map(mul, state.halfway, put_off))
            heads = state.whole[-1] * activations.head_kept(shape) if own[-1].is_last else 0
            for moment, value in _of_stage(spec, shape, stage, live, heads).items():
                found[moment] = max(found.get(moment, (0, 0)), value)
    return found


def _of_stage(spec: RunSpec, shape: Shape, stage: Stage, live: int, heads: int) -> dict[str, tuple[int, int]]:
    """The moments of one stage's backward pass, when `live` and, for the head and the loss, `heads` bytes are held."""
    mode, found = spec.activation_checkpoint, dict[str, tuple[int, int]]()
    if stage.is_last:
        working = activations.loss_working(shape)
        found["loss"] = (live + heads + working, heads + working)
        heads -= activations.head_kept(shape)
        working = activations.head_working(shape)
        found["head"] = (live + heads + working, heads + working)
    working, one = activations.block_working(shape, mode), activations.block_kept(shape, mode)
    is_whole = stage.is_first and stage.is_last
    working += activations.tied_waiting(shape, at_the_end=False) if is_whole else 0
    found["block"] = (live + heads + working, heads)
    if spec.parallel.pp > 1 and SCHEDULES[spec.parallel.pp_schedule].splits_backward:
        live += _put_off(shape, stage)
    later = live - min(1, stage.stop - stage.start - 1) * one
    found["later block"] = (later + heads + working, heads)
    live -= (stage.stop - stage.start - 1) * one
    found["first block"] = (live + heads + working, heads)
    if stage.is_first:
        working = activations.embedding_working(shape)
        working += activations.tied_waiting(shape, at_the_end=True) if is_whole else 0
        found["embedding"] = (live - one + heads + working, heads)
    return found


def _stage_kept(spec: RunSpec, shape: Shape, stage: Stage) -> int:
    """Of a micro-batch, but for the head's."""
    blocks = (stage.stop - stage.start) * activations.block_kept(shape, spec.activation_checkpoint)
    start = activations.embedding_kept(shape) if stage.is_first else _boundary(shape)
    return blocks + start + (0 if stage.is_last else shape.stream_bytes)


def _put_off(shape: Shape, stage: Stage) -> int:
    """Gradients that the weights' half of a backward pass still needs."""
    blocks = (stage.stop - stage.start) * activations.products_bytes(shape)
    return blocks + (activations.logits_bytes(shape) if stage.is_last else 0)


def _snapshot_bytes(spec: RunSpec, count: int) -> int:
    """fp32 weights and moments that this rank saves; state on drives is written while training waits."""
    copies = spec.checkpoint.is_on and spec.checkpoint.asynchronous and spec.offload.optimizer != "nvme"
    return _saved_bytes(spec, count) if copies else 0


def _kept_bytes(spec: RunSpec, count: int) -> int:
    """Of the generation that is whole and the one that is being written."""
    memory = spec.checkpoint.memory
    return 2 * (1 + memory.copies) * _saved_bytes(spec, count) if memory.every_steps else 0


def _saved_bytes(spec: RunSpec, count: int) -> int:
    return CHECKPOINT_BYTES * -(-count // (spec.parallel.dp_shard * spec.parallel.cp))


def _boundary(shape: Shape) -> int:
    """A stage's input, where its first block does not keep it as it is."""
    return shape.stream_bytes if shape.upcast else 0


def _batch_bytes(spec: RunSpec, shape: Shape) -> int:
    """Tokens and targets, in a pipeline of all micro-batches, singly and together; cosines and sines of positions."""
    batches = 2 * spec.train.accumulation if spec.parallel.pp > 1 else 1
    head_size = shape.model.hidden // shape.model.heads
    rotary = 2 * 4 * head_size * spec.data.seq_len // spec.parallel.cp
    return batches * 2 * TOKEN_BYTES * shape.positions + rotary


def _engine(
    spec: RunSpec, model: ModelSpec, own: tuple[Stage, ...], count: int, hardware: Hardware
) -> Engine:
    parallel, tp = spec.parallel, spec.parallel.tp
    shards, pipelined = parallel.dp_shard * parallel.cp, parallel.pp > 1
    alone = shards == 1 and spec.offload.params == "none"
    stage = 2 if parallel.zero == 3 and alone else parallel.zero
    block = layer_parameters(model, tp)
    layers = sum(each.stop - each.start for each in own)
    return Engine(
        stage=min(stage, 1) if pipelined and stage < 3 else stage,
        shards=shards,
        copies=parallel.dp_replicate,
        width=WIDTHS[spec.precision],
        pipelined=pipelined,
        accumulates=spec.train.accumulation > 1,
        reshards=not pipelined or reshards(parallel.pp_schedule),
        native=hardware.fused,
        total=count,
        block=block,
        matrix=model.hidden * model.ffn // tp,
        table=-(-model.vocab // tp) * model.hidden if own[0].is_first or own[-1].is_last else 0,
        outside=count - layers * block,
        largest_stage=max(stage_parameters(model, each, tp) for each in own),
        has_head=own[-1].is_last,
    )
