"""What offload takes of a step, and which tiers a run could use. Pure.

Gradients travel in fp32 at most (4 bytes a parameter) and weights at most so, one each way at a time.
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


def tiers_of(spec: RunSpec, hardware: Hardware) -> tuple[OffloadSpec, ...]:
    """Where optimizer state could rest, the fastest first: with the weights; in the host's memory, where that is
    another one than the ranks'; on drives, where the recipe names some. What the run itself has is among them.
    """
    own = spec.offload
    if own.params != "none":  # which go with what the run has
        return (own,)
    possible = {"none", own.optimizer, *(["cpu"] if hardware.fused else []), *(["nvme"] if own.path else [])}
    return tuple(
        own if tier == own.optimizer else replace(own, optimizer=tier, optimizer_fraction=1.0)
        for tier in TIERS
        if tier in possible
    )


def transfer_s(spec: RunSpec, model: ModelSpec, hardware: Hardware, update_s: float) -> float | None:
    """Seconds of a step that offload adds to an update of `update_s` in the ranks' own memory. None: not known.

    cpu: gradients go to the host, are updated there, and weights come back, all at once; without devices nothing moves.
    nvme: state is read and written while it is updated, and on devices all of the former besides.
    """
    offload = spec.offload
    if offload.optimizer == "none":
        return 0.0
    longest = update_s
    if hardware.fused:
        if hardware.host_rate is None:
            return None
        count = _away(spec, model)
        link = hardware.host_rate * HOST_LINK_SHARE
        longest = max(longest, ADAM_BYTES * count / HOST_ADAM_RATE, 4 * count / link)
    if offload.optimizer == "nvme":
        drives = hardware.rates and hardware.rates.rate("offload")
        rate = hardware.drive_rate or drives
        if not rate:
            return None
        longest = max(longest, 2 * _on_drives(spec, model) / rate)
    return longest - update_s


def _away(spec: RunSpec, model: ModelSpec) -> float:
    parallel = spec.parallel
    shards = parallel.dp_shard * parallel.cp if parallel.zero else 1
    return spec.offload.optimizer_fraction * max(rank_parameters(model, parallel)) / shards


def _on_drives(spec: RunSpec, model: ModelSpec) -> int:
    return state_of(spec, max(rank_parameters(model, spec.parallel))).disk_bytes
