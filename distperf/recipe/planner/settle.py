"""What "auto" becomes where memory is known: the largest micro-batch with the least recomputation that fits. Pure."""

from __future__ import annotations

from dataclasses import replace

from distperf.recipe.planner.hardware import Hardware
from distperf.recipe.planner.memory import memory
from distperf.recipe.runspec import RunSpec
from distperf.recipe.schedules import SCHEDULES, allows

MODES = ("none", "selective", "full")
MIB = 2**20


def settle(spec: RunSpec, hardware: Hardware, *, micro_batch: bool, checkpointing: bool) -> RunSpec:
    """The run with what was left open chosen; `micro_batch`, `checkpointing`: these may be changed.

    As the rules resolved it, if that fits or nobody knows. Else the first that fits, all micro-batches before any
    recomputation; and the most sparing, if nothing does.
    """
    if not (micro_batch or checkpointing):
        return spec
    room, planned = hardware.memory_bytes, memory(spec, hardware)
    if room is None or planned is None:
        return (
            _because(spec, "the memory of the hosts, or of the model, is not known")
            if checkpointing
            else spec
        )
    if planned.total_bytes <= room:
        why = f"{_mib(planned.total_bytes)} a rank fit into {_mib(room)} ({hardware.source})"
        return _because(spec, why) if checkpointing else spec
    tried = [
        with_micro_batch(replace(spec, activation_checkpoint=mode), size)
        for mode in (modes(spec) if checkpointing else (spec.activation_checkpoint,))
        for size in (micro_batches(spec) if micro_batch else (spec.train.micro_batch,))
    ]
    needs = [(planned.total_bytes, each) for each in tried if (planned := memory(each, hardware)) is not None]
    fitting = [found for found in needs if found[0] <= room]
    total, chosen = fitting[0] if fitting else min(needs, key=lambda found: found[0])
    verdict = "fit into" if fitting else "do not fit into"
    reasons = {**chosen.reasons}
    why = f"{_mib(total)} a rank {verdict} {_mib(room)} ({hardware.source})"
    if micro_batch:
        size = chosen.train.micro_batch
        most = "the largest that fits" if fitting else "the smallest"
        reasons["train.micro_batch"] = f"{size}: {most}, {why}"
        reasons["train.accumulation"] = f"{chosen.train.accumulation}: follows from micro_batch {size}"
    chosen = replace(chosen, reasons=reasons)
    return _because(chosen, why) if checkpointing else chosen


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


def _because(spec: RunSpec, why: str) -> RunSpec:
    key = "activation_checkpoint"
    return replace(spec, reasons={**spec.reasons, key: f"{spec.activation_checkpoint}: {why}"})


def _mib(value: int) -> str:
    return f"{value / MIB:,.0f} MiB"
