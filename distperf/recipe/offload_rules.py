"""What must hold between the keys of `offload`, and what of the state then rests where. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from distperf.recipe.dividing import OffloadSection, ParallelSection
from distperf.recipe.estimate import StateBytes
from distperf.recipe.runspec import OffloadSpec


def offload_faults(offload: OffloadSection, parallel: ParallelSection) -> Iterator[tuple[str, str]]:
    """Keys, and what is wrong with them."""
    tier = offload.optimizer
    if tier in ("none", "auto") and offload.optimizer_fraction != 1.0:
        yield (
            "offload.optimizer_fraction",
            f"offload.optimizer_fraction is {offload.optimizer_fraction:g}, but offload.optimizer is {tier}; take it "
            "out, or say cpu or nvme",
        )
    if tier == "nvme" and offload.path is None:
        yield (
            "offload.optimizer",
            "offload.optimizer is nvme; missing key offload.path (a folder on the drive, or several)",
        )
    if tier not in ("nvme", "auto") and offload.path is not None:
        yield (
            "offload.path",
            f"offload.path is for nvme, but offload.optimizer is {tier}; take out one of the two",
        )
    if offload.path is not None and len(set(offload.path)) < len(offload.path):
        yield "offload.path", "offload.path names a folder twice; one for each drive"
    if tier != "auto" and not goes_with(tier, parallel.zero):
        yield (
            "offload.optimizer",
            f"offload.optimizer is {tier}, which works with ZeRO 0 to 2, and parallel.zero is 3; take zero: 2, or none",
        )


def goes_with(tier: str, zero: int) -> bool:
    """Optimizer state of this ZeRO stage can rest there."""
    return tier == "none" or zero < 3


def offloaded(state: StateBytes, offload: OffloadSpec) -> StateBytes:
    """What is where when part of the optimizer's state is in a tier."""
    if offload.optimizer == "none":
        return state
    away = int(state.optimizer_bytes * offload.optimizer_fraction)
    here = state.optimizer_bytes - away
    if offload.optimizer == "nvme":
        return replace(state, optimizer_bytes=here, disk_bytes=away)
    note = (
        "offload.optimizer cpu: on a node without devices nothing moves, since optimizer state is in host memory "
        "anyway; it is counted there"
    )
    return replace(state, optimizer_bytes=here, host_bytes=away, notes=(*state.notes, note))
