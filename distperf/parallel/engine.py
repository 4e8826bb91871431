"""ZeRO stages 0 to 3 behind one seam: what the trainer and checkpoints stand on."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from distperf.offload.keeping import NO_OFFLOAD, Offload
from distperf.parallel.flat import FlatEngine
from distperf.parallel.fsdp import Policy
from distperf.parallel.live import FlatPlan
from distperf.parallel.materialize import Fill
from distperf.parallel.mesh import Mesh, alone
from distperf.parallel.pieces import OwnedTensor, Piece
from distperf.parallel.sharded import ShardedEngine
from distperf.parallel.sharing import SHARD_AXES, Sharing
from distperf.recipe.runspec import OptimizerSpec

__all__ = ["DTYPES", "Engine", "Fill", "OwnedTensor", "Piece", "build_engine"]

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "fp8": torch.bfloat16}


class Engine(Protocol):
    """A model whose weights, gradients and optimizer state are divided over ranks. One step of training:

        for micro_batch in ...: engine.backward(loss(engine.parts[0](...)) / tokens_of_all_ranks, last=...)
        engine.finish()
        norm_sq = global_norm_sq(engine.grad_norm_sq(), group)
        engine.step(lr, clip_factor(norm_sq, max_norm))

    Gradients are summed over ranks, never averaged: the loss was divided by the tokens of the global batch.
    """

    parts: Sequence[
        nn.Module
    ]  # called for the forward pass; several where a rank holds several pipeline stages
    optimizer_step: int  # updates made so far; set when a checkpoint is loaded

    def backward(self, loss: Tensor, last: bool) -> None:
        """Backward pass of one micro-batch; `last` of this step."""
        ...

    def collect(self) -> None:
        """Take the gradients that one stage's backward pass left in its parameters: a pipeline's way to `backward`."""
        ...

    def finish(self) -> None:
        """Wait until this step's gradients are complete."""
        ...

    def grad_norm_sq(self) -> Tensor:
        """() float64: this rank's share of the squared gradient norm; shares add up to it, in every stage."""
        ...

    def step(self, lr: float, grad_scale: Tensor | float) -> None:
        """Update the weights with gradients times `grad_scale`, on all ranks, and let go of the gradients."""
        ...

    def overflowed(self) -> list[str]:
        """Names of parameters whose gradients on this rank are not finite."""
        ...

    def skip(self) -> None:
        """Let go of this step's gradients, and leave the weights as they are."""
        ...

    def state(self) -> dict[str, OwnedTensor]:
        """What this rank owns, as views into live storage.

        Keys: model.<fqn> (the fp32 master where there is one); for trained parameters optimizer.exp_avg.<fqn> and
        optimizer.exp_avg_sq.<fqn>. All ranks of a pipeline stage have the same keys in the same order, some without
        pieces.
        """
        ...

    def fill(self, fill: Fill) -> None:
        """Set the weights. Where no checkpoint is loaded."""
        ...

    def loaded(self) -> None:
        """Bring all ranks up to date after the views of `state` were overwritten."""
        ...

    def memory(self) -> dict[str, int]:
        """parameters_bytes, gradients_bytes, optimizer_bytes and buckets_bytes (transient), at their peak.

        With offload also host_bytes and disk_bytes.
        """
        ...

    def close(self) -> None:
        """Let go of what would outlive the process: files of offloaded state."""
        ...


def build_engine(
    parts: Sequence[nn.Module],
    *,
    zero: int,
    precision: str,
    mesh: Mesh,
    device: torch.device,
    optimizer: OptimizerSpec,
    accumulation: int,
    fill: Fill | None,
    tied: Collection[str] = (),
    ends_apart: bool = True,
    reshards: bool = True,
    offload: Offload = NO_OFFLOAD,
) -> Engine:
    """An engine around a model on the meta device, with the values that `fill` gives; None: with none yet. Collective.

    State is divided over the dp_shard and cp axes of the mesh; where they have one rank, stage 3 runs as stage 2,
    unless parameters are offloaded. In a pipeline gradients stay whole until its last backward pass, so that stage 2
    runs as stage 1.

    `parts`: the model, or the pipeline stages of it that this rank holds; a parameter is a DTensor where it is divided
    over the tp axis. `precision`: a key of DTYPES. `accumulation`: micro-batches a step. `tied`: names of parameters
    that first and last pipeline stage share; `ends_apart`: these two are on different ranks. `reshards`: stage 3 lets
    go of gathered weights between forward and backward pass. `offload`: where state rests.

    Raises:
        DistperfError: a parameter or buffer of the model cannot be used as it is.
        OffloadError: a drive is too small or cannot be written.

    Cost: stages 0 to 2, with `fill`, as one all-gather of the weights.
    """
    dtype, pipelined = DTYPES[precision], mesh.size("pp") > 1
    sharing = Sharing.of(mesh, device, ties=pipelined and bool(tied) and ends_apart)
    engine: FlatEngine | ShardedEngine
    if zero == 3 and (sharing.shards.size > 1 or offload.params != "none"):
        divided = mesh.hybrid("dp_replicate", SHARD_AXES) or alone(device)
        engine = ShardedEngine(
            parts,
            policy=Policy(dtype, divided, reshards, offload.params),
            sharing=sharing,
            device=device,
            optimizer=optimizer,
            tied=tied,
            offload=offload,
        )
    else:
        stage = min(zero, 1 if pipelined else 2)
        plan = FlatPlan(stage, dtype, accumulates=accumulation > 1, pipelined=pipelined)
        engine = FlatEngine(parts, plan, sharing, device, optimizer, tied, offload)
    if fill is not None:
        engine.fill(fill)
    return engine
