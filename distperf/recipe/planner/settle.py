"""What "auto" becomes where memory is known: the largest micro-batch with the least recomputation that fits, and
offload where nothing else does. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from distperf.recipe.offload_rules import goes_with
from distperf.recipe.planner.hardware import Hardware
from distperf.recipe.planner.memory import memory
from distperf.recipe.planner.tiers import tiers_of
from distperf.recipe.runspec import OffloadSpec, RunSpec
from distperf.recipe.schedules import SCHEDULES, allows

MODES = ("none", "selective", "full")
MIB = 2**20
CHECKPOINTING, OFFLOAD = "activation_checkpoint", "offload.optimizer"
NOT_BESIDE = "false: state that rests on drives is not copied to host memory for a save"


def settle(
    spec: RunSpec, hardware: Hardware, *, micro_batch: bool, checkpointing: bool, offload: bool = False
) -> RunSpec:
    """The run with what was left open chosen; `micro_batch`, `checkpointing`, `offload`: these may be changed.

    As the rules resolved it, if that fits or nobody knows. Else the first that fits: all micro-batches before any
    recomputation, and that before any offload; and the most sparing, if nothing does.
    """
    told = [key for key, is_open in ((CHECKPOINTING, checkpointing), (OFFLOAD, offload)) if is_open]
    if not (micro_batch or told):
        return spec
    room, planned = hardware.memory_bytes, memory(spec, hardware)
    if room is None or planned is None:
        return _because(spec, "the memory of the hosts, or of the model, is not known", told)
    if planned.total_bytes <= room:
        return _because(spec, _verdict("fit into", planned.total_bytes, room, hardware), told)
    tried = [
        with_micro_batch(replace(with_tier(spec, tier), activation_checkpoint=mode), size)
        for tier in (tiers_of(spec, hardware) if offload else (spec.offload,))
        if goes_with(tier, spec.parallel.zero, spec.parallel.pp)
        for mode in (modes(spec) if checkpointing else (spec.activation_checkpoint,))
        for size in (micro_batches(spec) if micro_batch else (spec.train.micro_batch,))
    ]
    needs = [(planned.total_bytes, each) for each in tried if (planned := memory(each, hardware)) is not None]
    fitting = [found for found in needs if found[0] <= room]
    total, chosen = fitting[0] if fitting else min(needs, key=lambda found: found[0])
    why = _verdict("fit into" if fitting else "do not fit into", total, room, hardware)
    reasons = {**chosen.reasons}
    if micro_batch:
        size = chosen.train.micro_batch
        most = "the largest that fits" if fitting else "the smallest"
        reasons["train.micro_batch"] = f"{size}: {most}, {why}"
        reasons["train.accumulation"] = f"{chosen.train.accumulation}: follows from micro_batch {size}"
    return _because(replace(chosen, reasons=reasons), why, told)


def with_tier(spec: RunSpec, tier: OffloadSpec) -> RunSpec:
    """The run with its optimizer state there. What rests on drives has no second place for a save beside training."""
    if tier.optimizer != "nvme" or not spec.checkpoint.asynchronous:
        return replace(spec, offload=tier)
    reasons = {**spec.reasons, "checkpoint.async": NOT_BESIDE}
    return replace(
        spec, offload=tier, checkpoint=replace(spec.checkpoint, asynchronous=False), reasons=reasons
    )


def modes(spec: RunSpec) -> tuple[str, ...]:
    """What activation_checkpoint can be; a backward pass in two halves goes with none."""
    splits = spec.parallel.pp > 1 and SCHEDULES[spec.parallel.pp_schedule].splits_backward
    return MODES[:1] if splits else MODES


def micro_batches(spec: RunSpec, most: int | None = None) -> tuple[int, ...]:
    """Sizes of up to `most` (the run's own) that its share of the batch and its pipeline take, the largest first."""
    parallel, share = spec.parallel, spec.train.micro_batch * spec.train.accumulation
    sizes = range(min(share, most or spec.train.micro_batch), 0, -1)
    return tuple(
        size
        for size in sizes
        if share % size == 0
        and (parallel.pp == 1 or allows(parallel.pp_schedule, parallel.pp, share // size))
    )


def with_micro_batch(spec: RunSpec, size: int) -> RunSpec:
    """The same global batch, in other pieces."""
    share = spec.train.micro_batch * spec.train.accumulation
    return replace(spec, train=replace(spec.train, micro_batch=size, accumulation=share // size))


def _because(spec: RunSpec, why: str, keys: Iterable[str]) -> RunSpec:
    if OFFLOAD in keys and spec.offload.path and spec.checkpoint.memory.every_steps:
        why = f"{why}; not nvme beside checkpoint.memory, which needs room in memory for the same state"
    values = {CHECKPOINTING: spec.activation_checkpoint, OFFLOAD: spec.offload.optimizer}
    return replace(spec, reasons={**spec.reasons, **{key: f"{values[key]}: {why}" for key in keys}})


def _verdict(verb: str, total: int, room: int, hardware: Hardware) -> str:
    return f"{total / MIB:,.0f} MiB a rank {verb} {room / MIB:,.0f} MiB ({hardware.source})"
