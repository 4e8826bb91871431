"""What must hold between the keys of `offload`, and what of the state then rests where. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

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
    if offload.params != "none":
        yield from _params_faults(offload, parallel)


def _params_faults(offload: OffloadSection, parallel: ParallelSection) -> Iterator[tuple[str, str]]:
    key, tier = "offload.params", offload.params
    if parallel.zero != 3:
        yield (
            key,
            f"offload.params is {tier}, and parallel.zero is {parallel.zero}, which has all weights on every rank all "
            "the time; take zero: 3, or params: none",
        )
    if parallel.pp > 1:
        yield (
            key,
            f"offload.params is {tier}, and parallel.pp is {parallel.pp}: a pipeline keeps its gradients whole until "
            "its last micro-batch, so nothing would be gained; take pp: 1, or params: none",
        )
    allowed = ("nvme",) if tier == "nvme" else ("cpu", "nvme")
    if offload.optimizer not in allowed:
        yield (
            key,
            f"offload.params is {tier}, and offload.optimizer is {offload.optimizer}, the larger part of the state; "
            f"take optimizer: {' or '.join(allowed)}, or params: none",
        )


def goes_with(offload: OffloadSpec, zero: int, pp: int) -> bool:
    """State of this ZeRO stage and pipeline can rest there."""
    return offload.params == "none" or (zero == 3 and pp == 1)


@dataclass(frozen=True)
class ShardGroups:
    """Parameters of a rank's shards that stage 3 gathers one after the other: outside the blocks, then each block."""

    outside: int
    block: int
    blocks: int

    def window(self, length: int) -> int:
        """The most parameters in groups that follow each other."""
        return self.outside + min(length - 1, self.blocks) * self.block


# Groups in memory at a time, as `distperf.offload.shelf` has them. Of weights, in an update: one that is updated, one
# read ahead, two being written. Of gradients, at a backward pass's end: one that arrives, two being written.
WEIGHTS_THERE, GRADIENTS_THERE = 4, 3


def offloaded(state: StateBytes, offload: OffloadSpec, groups: ShardGroups) -> StateBytes:
    """What is where when part of the state is in a tier."""
    if offload.optimizer == "none":
        return state
    away = int(state.optimizer_bytes * offload.optimizer_fraction)
    here = state.optimizer_bytes - away
    if offload.optimizer == "nvme":
        state = replace(state, optimizer_bytes=here, disk_bytes=away)
    else:
        note = (
            "offload.optimizer cpu: on a node without devices nothing moves, since optimizer state is in host memory "
            "anyway; it is counted there"
        )
        state = replace(state, optimizer_bytes=here, host_bytes=away, notes=(*state.notes, note))
    both = state.parameters_bytes + state.gradients_bytes
    if offload.params == "cpu":
        return replace(state, parameters_bytes=0, gradients_bytes=0, host_bytes=state.host_bytes + both)
    if offload.params == "nvme":
        weights, gradients = (4 * groups.window(length) for length in (WEIGHTS_THERE, GRADIENTS_THERE))
        disk = state.disk_bytes + both
        return replace(state, parameters_bytes=weights, gradients_bytes=gradients, disk_bytes=disk)
    return state
