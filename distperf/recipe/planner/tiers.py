"""What offload takes of a step, and which tiers a run could use. Pure.

Gradients travel in fp32 at most (4 bytes a parameter) and weights at most so.
"""

from __future__ import annotations

from dataclasses import replace

from distperf.recipe.holdings import rank_parameters, state_of
from distperf.recipe.planner.hardware import Hardware
from distperf.recipe.runspec import ModelSpec, OffloadSpec, RunSpec

# Of a PCIe link's bytes, what large copies from pinned memory get.
HOST_LINK_SHARE = 0.8
# A rank's part of its host's memory, by which Adam goes there: eight ranks share some 300 GB/s of two sockets.
HOST_ADAM_RATE = 35e9
TIERS = ("none", "cpu", "nvme")  # the fastest first
ADAM_BYTES = 28


def tiers_of(spec: RunSpec, hardware: Hardware, *, params: bool = False) -> tuple[OffloadSpec, ...]:
    """Where optimizer state could rest, the fastest first: with the weights; in the host's memory, where that is
    another one than the ranks'; on drives, where the recipe names some. What the run itself has is among them.

    params: each also with the parameters, which ZeRO-3 can have there (`goes_with`).
    Not on drives beside checkpoints in memory: what fits there had no need of a drive.
    """
    own, drives = spec.offload, spec.offload.path and not spec.checkpoint.memory.every_steps
    if own.params != "none":  # which go with what the run has
        return (own,)
    possible = {"none", own.optimizer, *(["cpu"] if hardware.fused else []), *(["nvme"] if drives else [])}
    tiers = tuple(
        own if tier == own.optimizer else replace(own, optimizer=tier, optimizer_fraction=1.0)
        for tier in TIERS
        if tier in possible
    )
    elsewhere = {"nvme", *(["cpu"] if hardware.fused else [])}
    with_params = (replace(tier, params=tier.optimizer) for tier in tiers if tier.optimizer in elsewhere)
    return (*tiers, *with_params) if params else tiers


def transfer_s(
    spec: RunSpec, model: ModelSpec, hardware: Hardware, compute_s: float, update_s: float
) -> float | None:
    """Seconds of a step that offload adds to passes and an update in the ranks' own memory. None: not known.

    cpu: gradients go to the host, are updated there, and weights come back, all at once; without devices nothing moves.
    nvme: state is read and written while it is updated, and on devices all of the former besides.
    params: shards come for each pass, and gradients go, while layers compute.
    """
    offload = spec.offload
    if offload.optimizer == "none":
        return 0.0
    passes, update = 0.0, update_s
    if hardware.fused:
        if hardware.host_rate is None:
            return None
        link, count = hardware.host_rate * HOST_LINK_SHARE, offload.optimizer_fraction * _shard(spec, model)
        update = max(update, ADAM_BYTES * count / HOST_ADAM_RATE, 4 * count / link)
        passes = _by_passes(spec, model) / link
    if offload.optimizer == "nvme":
        rate = hardware.drive_rate or (hardware.rates and hardware.rates.rate("offload"))
        if not rate:
            return None
        update = max(update, _by_update(spec, model) / rate)
        passes = max(passes, _by_passes(spec, model) / rate)
    return update - update_s + max(0.0, passes - compute_s)


def _shard(spec: RunSpec, model: ModelSpec) -> float:
    """Parameters of a rank."""
    parallel = spec.parallel
    shards = parallel.dp_shard * parallel.cp if parallel.zero else 1
    return max(rank_parameters(model, parallel)) / shards


def _by_passes(spec: RunSpec, model: ModelSpec) -> float:
    """Bytes: every micro-batch takes weights forward and backward and gives gradients, from the second on to others."""
    if spec.offload.params == "none":
        return 0.0
    accumulation = spec.train.accumulation
    fetched = accumulation - 1 if spec.offload.params == "nvme" else 0
    return 4 * _shard(spec, model) * (3 * accumulation + fetched)


def _by_update(spec: RunSpec, model: ModelSpec) -> float:
    """Bytes to and from drives: all of it is read, and all but gradients written."""
    gradients = 4 * _shard(spec, model) if spec.offload.params == "nvme" else 0
    return 2 * state_of(spec, max(rank_parameters(model, spec.parallel))).disk_bytes - gradients
