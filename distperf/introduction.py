"""What a run says of itself when it begins, in one line."""

from __future__ import annotations

import torch

from distperf.recipe.estimate import known_parameters
from distperf.recipe.runspec import DataSpec, OffloadSpec, RunSpec


def introduction(spec: RunSpec, device: torch.device) -> str:
    """What is trained, how, on what."""
    train, data = spec.train, spec.data
    count = known_parameters(spec.model)
    counted = "" if count is None else f"{count:,} parameters in "
    return (
        f"{spec.name}: {counted}{spec.precision}, "
        f"ZeRO-{spec.parallel.zero} on {_ranks(spec)} ({device.type}); {_source(data)}; "
        f"{train.steps} steps of {train.global_batch} x {data.seq_len} tokens "
        f"(micro-batch {train.micro_batch}, accumulation {train.accumulation}){_away(spec.offload)}"
    )


def _source(data: DataSpec) -> str:
    if data.synthetic:
        return "synthetic data"
    if data.factory is not None:
        return f"data of {data.factory}"
    total = sum(item.weight for item in data.mixture)
    mixed = [f"{item.weight / total:.3g} of {item.path}" for item in data.mixture]
    return f"data {', '.join(data.text or data.tokens or mixed)}"


def _away(offload: OffloadSpec) -> str:
    if offload.optimizer == "none":
        return ""
    place = "host memory" if offload.optimizer == "cpu" else ", ".join(offload.path)
    weights = "weights, gradients and " if offload.params == "nvme" else ""
    return f"; {weights}{offload.optimizer_fraction:.0%} of optimizer state in {place}"


def _ranks(spec: RunSpec) -> str:
    """How many ranks there are, and along which axes where data parallelism is not the only one."""
    axes = [f"{axis} {size}" for axis, size in spec.parallel.mesh.sizes().items() if size > 1]
    ranks = f"{spec.world_size} rank" + "s" * (spec.world_size > 1)
    return ranks if spec.parallel.dp_shard == spec.world_size else f"{ranks}, {' x '.join(axes)}"
