"""ZeRO stage 3 on torch's fully_shard: a layer's weights are whole only while it computes.

Legend: n parameters, N ranks, L parameters of the largest layer, w bytes of a working weight.

Rows (dim 0) of every parameter are divided among ranks. fully_shard keeps fp32 shards, which in bf16 are the
masters, and fp32 gradients: 4n/N of each. Gradients are reduced in fp32, in every micro-batch.

A whole layer that some ranks skip in forward cannot work here: its weights are gathered by all ranks or by
none, and the group's timeout ends the run. Parameters inside a layer may be unused on any rank.

Source: Rajbhandari et al., arXiv:1910.02054 (ZeRO); Zhao et al., arXiv:2304.11277 (FSDP).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp._fully_shard._fsdp_api import AllGather, Comm, ReduceScatter
from torch.distributed.tensor import DTensor

from distperf.measure.memory import storage_bytes
from distperf.model.blocks import repeated_blocks
from distperf.optim.adamw import Moments, Update
from distperf.optim.clip import sum_of_squares
from distperf.parallel.buckets import ParameterInfo
from distperf.parallel.collectives import Peers, start_gather, start_reduce
from distperf.parallel.materialize import Fill, install, parameter_infos, place_buffers
from distperf.parallel.pieces import OwnedTensor, Piece
from distperf.parallel.scratch import Scratch
from distperf.recipe.runspec import OptimizerSpec


@dataclass(frozen=True)
class Rows:
    """The rows of a parameter that this rank owns, from row `first` on. `moments` is None where it is frozen."""

    info: ParameterInfo
    parameter: nn.Parameter
    first: int
    moments: Moments | None

    @property
    def weights(self) -> Tensor:
        """fp32 view; taken anew each time, since fully_shard may move it."""
        return _local(self.parameter)

    @property
    def grad(self) -> Tensor:
        """fp32, summed over ranks; zeros where no rank used the parameter."""
        grad = self.parameter.grad
        return torch.zeros_like(self.weights) if grad is None else _local(grad)

    def owned(self, tensor: Tensor) -> OwnedTensor:
        """Rows of the parameter's weights or moments, told as a piece of the whole."""
        offsets = (self.first, *(0 for _ in self.info.shape[1:]))
        pieces = (Piece(offsets, tensor),) if tensor.numel() else ()
        return OwnedTensor(self.info.shape, tensor.dtype, pieces)


class ShardedEngine:
    """Trains a model with ZeRO stage 3. The seam is described at `distperf.parallel.engine.Engine`."""

    def __init__(
        self, model: nn.Module, *, dtype: torch.dtype, mesh: DeviceMesh, optimizer: OptimizerSpec
    ) -> None:
        self.model = model
        self.optimizer_step = 0
        self._spec = optimizer
        self._gradients_bytes = 0
        self._rows = [_rows_of(*pair, mesh) for pair in _shard(model, dtype, mesh, optimizer)]
        self._trained = [rows for rows in self._rows if rows.moments is not None]

    @torch.no_grad()
    def fill(self, fill: Fill) -> None:
        """Set the weights. Each rank makes its own rows; nothing is sent."""
        for rows in self._rows:
            row = math.prod(rows.info.shape[1:])
            start = rows.first * row
            values = fill(rows.info.fqn, rows.info.shape, start, start + rows.weights.numel())
            rows.weights.copy_(values.view_as(rows.weights))

    def backward(self, loss: Tensor, last: bool) -> None:
        """Gradients of one micro-batch, reduced inside the backward pass (`last` makes no difference).

        Cost: sends (N - 1) / N * n * (4 + w) bytes a rank, reducing gradients and gathering weights; the forward
        pass gathers once more. Peak extra 2 * L * (4 + w).
        """
        loss.backward()  # type: ignore[no-untyped-call]  # torch has no annotation here

    def finish(self) -> None:
        """Nothing is left to wait for: fully_shard waits at the end of the backward pass."""

    @torch.no_grad()
    def grad_norm_sq(self) -> Tensor:
        """() float64: this rank's rows only."""
        return sum_of_squares(rows.grad for rows in self._trained)

    @torch.no_grad()
    def step(self, lr: float, grad_scale: Tensor | float) -> None:
        """Update this rank's rows with gradients times `grad_scale`; the next forward pass gathers them."""
        self.optimizer_step += 1
        update = Update(self._spec, self.optimizer_step, lr, grad_scale)
        self._gradients_bytes = self._live_gradients()
        for treatment in sorted({r.info.treatment for r in self._trained}):
            alike = [r for r in self._trained if r.info.treatment == treatment and r.weights.numel()]
            moments = [r.moments for r in alike if r.moments is not None]
            update.apply([r.weights for r in alike], [r.grad for r in alike], moments, treatment)
        for rows in self._trained:
            rows.parameter.grad = None

    def state(self) -> dict[str, OwnedTensor]:
        """Rows of weights and moments, as views."""
        owned = {}
        for rows in self._rows:
            owned[f"model.{rows.info.fqn}"] = rows.owned(rows.weights)
            if rows.moments is not None:
                owned[f"optimizer.exp_avg.{rows.info.fqn}"] = rows.owned(rows.moments.exp_avg)
                owned[f"optimizer.exp_avg_sq.{rows.info.fqn}"] = rows.owned(rows.moments.exp_avg_sq)
        return owned

    def loaded(self) -> None:
        """Nothing to do: whole weights exist only while a layer computes, and are gathered then."""

    def memory(self) -> dict[str, int]:
        """Bytes of live tensors. Gradients are those of the last step, which `step` has freed since.

        Gathered layers come and go with the allocator and are not counted: `buckets_bytes` is 0.
        """
        moments = [t for r in self._trained if r.moments for t in (r.moments.exp_avg, r.moments.exp_avg_sq)]
        return {
            "parameters_bytes": storage_bytes(rows.weights for rows in self._rows),
            "gradients_bytes": max(self._gradients_bytes, self._live_gradients()),
            "optimizer_bytes": storage_bytes(moments),
            "buckets_bytes": 0,
        }

    def _live_gradients(self) -> int:
        return storage_bytes(_local(r.parameter.grad) for r in self._trained if r.parameter.grad is not None)


def _shard(
    model: nn.Module, dtype: torch.dtype, mesh: DeviceMesh, optimizer: OptimizerSpec
) -> list[tuple[ParameterInfo, nn.Parameter]]:
    """Divide a model on the meta device and give this rank's rows memory; values are still to come."""
    infos = parameter_infos(model, optimizer)
    device = torch.device(mesh.device_type)
    # fully_shard takes contiguous parameters only. Nothing is in them yet, so they may as well be that.
    install(model, {info.fqn: torch.empty(info.shape, device="meta") for info in infos})
    place_buffers(model, device)
    policy = MixedPrecisionPolicy(
        param_dtype=None if dtype == torch.float32 else dtype,
        reduce_dtype=torch.float32,
        cast_forward_inputs=False,  # as in stages 0 to 2, where what is fp32 on purpose stays so
    )
    for layer in repeated_blocks(model):
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            _set_reductions(module, mesh)
    # What to_empty does, but for buffers, which have their values by now.
    model._apply(lambda t: torch.empty_like(t, device=device) if t.is_meta else t)  # type: ignore[no-untyped-call]
    return list(zip(infos, model.parameters(), strict=True))


def _set_reductions(module: FSDPModule, mesh: DeviceMesh) -> None:
    """Sums, since the loss is divided already; zeros for parameters that only other ranks used."""
    module.set_force_sum_reduction_for_comms(True)
    module.set_gradient_divide_factor(1.0)
    module.set_reduce_scatter_unused_params(True, recurse=False)
    peers = Peers.of(mesh.get_group(), torch.device(mesh.device_type))
    if peers.size > 1 and peers.exchanges:
        module.set_custom_all_gather(_Gather(peers))
        module.set_custom_reduce_scatter(_Reduce(peers))


class _Exchange(Comm):
    """What fully_shard asks of a collective besides the call itself: memory."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers

    def allocate(
        self, size: Sequence[int | torch.SymInt], *, dtype: torch.dtype, device: torch.device
    ) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)


class _Gather(_Exchange, AllGather):
    """All-gather by exchange. fully_shard has put this rank's shard where it belongs in the output."""

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, async_op: bool = False
    ) -> None:
        start_gather(output_tensor, self._peers).wait()


class _Reduce(_Exchange, ReduceScatter):
    """Reduce-scatter by exchange: sums in rank order."""

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,
        op: dist.ReduceOp,
        async_op: bool = False,
    ) -> None:
        scratch = Scratch(input_tensor.device, 0)
        start_reduce(input_tensor, output_tensor, self._peers, scratch).wait()


def _rows_of(info: ParameterInfo, parameter: nn.Parameter, mesh: DeviceMesh) -> Rows:
    """Rows as fully_shard divides them, like torch.chunk: ceil(rows / N) for the first ranks, then what is left."""
    local = _local(parameter)
    length = -(-info.shape[0] // mesh.size())
    first = min(length * mesh.get_local_rank(), info.shape[0])
    return Rows(info, parameter, first, Moments.zeros_like(local) if info.trainable else None)


def _local(tensor: Tensor) -> Tensor:
    return cast(DTensor, tensor.detach()).to_local()
