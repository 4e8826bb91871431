"""ZeRO stages 0 to 3 behind one seam: what the trainer and checkpoints stand on."""

from __future__ import annotations

from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from distperf.parallel.collectives import Peers
from distperf.parallel.flat import FlatEngine
from distperf.parallel.live import FlatPlan
from distperf.parallel.materialize import Fill
from distperf.parallel.pieces import OwnedTensor, Piece
from distperf.parallel.sharded import ShardedEngine
from distperf.recipe.runspec import OptimizerSpec

__all__ = ["DTYPES", "Engine", "Fill", "OwnedTensor", "Piece", "build_engine"]

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


class Engine(Protocol):
    """A model whose weights, gradients and optimizer state are divided over ranks. One step of training:

        for micro_batch in ...: engine.backward(loss(engine.model(...)) / tokens_of_all_ranks, last=...)
        engine.finish()
        norm_sq = global_norm_sq(engine.grad_norm_sq(), group)
        engine.step(lr, clip_factor(norm_sq, max_norm))

    Gradients are summed over ranks, never averaged: the loss was divided by the tokens of the global batch.
    """

    model: nn.Module  # called for the forward pass
    optimizer_step: int  # updates made so far; set when a checkpoint is loaded

    def backward(self, loss: Tensor, last: bool) -> None:
        """Backward pass of one micro-batch; `last` of this step."""
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

    def state(self) -> dict[str, OwnedTensor]:
        """What this rank owns, as views into live storage.

        Keys: model.<fqn> (the fp32 master where there is one); for trained parameters optimizer.exp_avg.<fqn> and
        optimizer.exp_avg_sq.<fqn>. All ranks have the same keys in the same order, some without pieces.
        """
        ...

    def loaded(self) -> None:
        """Bring all ranks up to date after the views of `state` were overwritten."""
        ...

    def memory(self) -> dict[str, int]:
        """parameters_bytes, gradients_bytes, optimizer_bytes and buckets_bytes (transient), at their peak."""
        ...


def build_engine(
    model: nn.Module,
    *,
    zero: int,
    precision: str,
    group: dist.ProcessGroup | None,
    device: torch.device,
    optimizer: OptimizerSpec,
    accumulation: int,
    fill: Fill,
) -> Engine:
    """An engine around a model on the meta device, with the values that `fill` gives.

    `group`: the ranks that state is divided by; None for this rank alone, where stage 3 runs as stage 2.
    `precision`: fp32 or bf16. `accumulation`: micro-batches a step.

    Raises:
        DistperfError: a parameter or buffer of the model cannot be used as it is.

    Cost: stages 0 to 2 as one all-gather of the weights.
    """
    dtype = DTYPES[precision]
    peers = Peers.of(group, device)
    engine: FlatEngine | ShardedEngine
    if zero == 3 and group is not None:
        mesh = DeviceMesh.from_group(group, device.type)
        engine = ShardedEngine(model, dtype=dtype, mesh=mesh, optimizer=optimizer)
    else:
        plan = FlatPlan(stage=min(zero, 2), dtype=dtype, accumulates=accumulation > 1)
        engine = FlatEngine(model, plan, peers, device, optimizer)
    engine.fill(fill)
    return engine
