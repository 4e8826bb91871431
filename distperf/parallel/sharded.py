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
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from distperf.measure.memory import storage_bytes
from distperf.optim.adamw import Moments, Update
from distperf.optim.clip import sum_of_squares
from distperf.parallel.buckets import ParameterInfo
from distperf.parallel.collectives import Peers, sum_in_place
from distperf.parallel.fsdp import Policy, shard_part
from distperf.parallel.materialize import Fill, block_values, local, parameter_infos
from distperf.parallel.pieces import OwnedTensor, Piece
from distperf.parallel.scratch import Scratch
from distperf.parallel.sharing import Sharing
from distperf.recipe.runspec import OptimizerSpec


@dataclass(frozen=True)
class Rows:
    """The rows that this rank owns of its block of a parameter, from row `first` of the block on.

    `moments` is None where it is frozen. `counts`: of equal copies on several ranks this is the one that is saved.
    """

    info: ParameterInfo
    parameter: nn.Parameter
    first: int
    moments: Moments | None
    counts: bool

    @property
    def weights(self) -> Tensor:
        """fp32 view; taken anew each time, since fully_shard may move it."""
        return _local(self.parameter)

    @property
    def grad(self) -> Tensor:
        """fp32, summed over ranks; zeros where no rank used the parameter."""
        grad = self.parameter.grad
        return torch.zeros_like(self.weights) if grad is None else _local(grad)

    @property
    def states(self) -> tuple[Tensor, ...]:
        """The moments, if there are any."""
        return () if self.moments is None else (self.moments.exp_avg, self.moments.exp_avg_sq)

    def owned(self, tensor: Tensor) -> OwnedTensor:
        """Rows of the parameter's weights or moments, told as a piece of the whole."""
        top, others = self.info.offsets[:1], self.info.offsets[1:]
        pieces = (Piece((*(at + self.first for at in top), *others), tensor),) if tensor.numel() else ()
        return OwnedTensor(self.info.shape, tensor.dtype, pieces, self.counts)


class ShardedEngine:
    """Trains a model with ZeRO stage 3. The seam is described at `distperf.parallel.engine.Engine`."""

    def __init__(
        self,
        parts: Sequence[nn.Module],
        policy: Policy,
        sharing: Sharing,
        device: torch.device,
        optimizer: OptimizerSpec,
        tied: Collection[str] = (),
    ) -> None:
        self.parts = parts
        self.optimizer_step = 0
        self._spec, self._sharing, self._policy = optimizer, sharing, policy
        self._gradients_bytes = 0
        self._scratch = Scratch(device, 0)
        self._rows: list[Rows] = []
        self._twins: list[Rows] = []  # rows of parameters that an earlier part of this rank has too
        for part in parts:
            infos = parameter_infos([part], optimizer, tied)
            shard_part(part, policy, sharing.shards, device)
            self._keep(infos, list(part.parameters()))
        self._trained = [rows for rows in self._rows if rows.moments is not None]

    def _keep(self, infos: list[ParameterInfo], parameters: list[nn.Parameter]) -> None:
        known = {rows.info.fqn for rows in self._rows}
        for info, parameter in zip(infos, parameters, strict=True):
            counts = self._sharing.counts(info.divided, info.tied)
            rows = _rows_of(info, parameter, self._sharing.shards, counts)
            (self._twins if info.fqn in known else self._rows).append(rows)

    @torch.no_grad()
    def fill(self, fill: Fill) -> None:
        """Set the weights. Each rank makes its own rows; nothing is sent."""
        for rows in self._rows + self._twins:
            start = rows.first * math.prod(rows.info.local_shape[1:])
            values = block_values(fill, rows.info, start, start + rows.weights.numel())
            rows.weights.copy_(values.view_as(rows.weights))

    def backward(self, loss: Tensor, last: bool) -> None:
        """Gradients of one micro-batch, reduced inside the backward pass (`last` makes no difference).

        Cost: sends (N - 1) / N * n * (4 + w) bytes a rank, reducing gradients and gathering weights; the forward
        pass gathers once more. Peak extra 2 * L * (4 + w).
        """
        loss.backward()  # type: ignore[no-untyped-call]  # torch has no annotation here

    def collect(self) -> None:
        """Nothing to do: fully_shard keeps gradients and adds them up until a pipeline's last backward pass."""

    @torch.no_grad()
    def finish(self) -> None:
        """Add up the gradients of parameters without dims, and of those that first and last pipeline stage share.

        Cost: of these as `sum_in_place`; of others nothing, as fully_shard waits at the end of the backward pass.
        """
        for rows in self._trained + self._twins:
            if not rows.info.shape:
                for peers in (self._sharing.shards, *self._sharing.sums(tied=False)):
                    rows.parameter.grad = self._summed(rows.grad, peers)
        by_name = {rows.info.fqn: rows for rows in self._trained}
        for twin in self._twins:
            total = by_name[twin.info.fqn].grad.add_(twin.grad)
            twin.grad.copy_(total)
        if self._sharing.ends.size > 1:
            for rows in self._trained:
                if rows.info.tied:
                    rows.grad.copy_(self._summed(rows.grad, self._sharing.ends))

    def _summed(self, rows: Tensor, peers: Peers) -> Tensor:
        """The sum over ranks that have the same rows, to the same bits."""
        padded = torch.zeros(-(-rows.numel() // peers.size) * peers.size, device=rows.device)
        padded[: rows.numel()] = rows.flatten()
        sum_in_place(padded, peers, self._scratch)
        return padded[: rows.numel()].view_as(rows)

    @torch.no_grad()
    def grad_norm_sq(self) -> Tensor:
        """() float64: this rank's rows only, and of equal copies one."""
        return sum_of_squares(rows.grad.contiguous() for rows in self._trained if rows.counts)

    def overflowed(self) -> list[str]:
        """Names of parameters with gradients on this rank that are not finite."""
        return [rows.info.fqn for rows in self._trained if not rows.grad.isfinite().all()]

    def skip(self) -> None:
        """Let go of this step's gradients without an update."""
        for rows in self._trained + self._twins:
            rows.parameter.grad = None

    @torch.no_grad()
    def step(self, lr: float, grad_scale: Tensor | float) -> None:
        """Update this rank's rows with gradients times `grad_scale`; the next forward pass gathers them."""
        self.optimizer_step += 1
        update = Update(self._spec, self.optimizer_step, lr, grad_scale)
        self._gradients_bytes = self._live_gradients()
        trained = self._trained + self._twins
        for treatment in sorted({r.info.treatment for r in trained}):
            alike = [r for r in trained if r.info.treatment == treatment and r.weights.numel()]
            moments = [r.moments for r in alike if r.moments is not None]
            update.apply([r.weights for r in alike], [r.grad for r in alike], moments, treatment)
        self.skip()

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
        """Whole weights exist only while a layer computes, and are gathered then; twins are brought up to date."""
        by_name = {rows.info.fqn: rows for rows in self._rows}
        with torch.no_grad():
            for twin in self._twins:
                first = by_name[twin.info.fqn]
                twin.weights.copy_(first.weights)
                for own, other in zip(twin.states, first.states, strict=True):
                    own.copy_(other)

    def memory(self) -> dict[str, int]:
        """Bytes of live tensors. Gradients are those of the last step, which `step` has freed since.

        Gathered layers come and go with the allocator and are not counted (`buckets_bytes` is 0), but for those that
        stay from forward to backward pass.
        """
        held = self._rows + self._twins
        moments = [state for rows in held for state in rows.states]
        return {
            "parameters_bytes": storage_bytes(rows.weights for rows in held) + self._gathered_bytes(),
            "gradients_bytes": max(self._gradients_bytes, self._live_gradients()),
            "optimizer_bytes": storage_bytes(moments),
            "buckets_bytes": 0,
        }

    def close(self) -> None:
        """Nothing of it outlives the process."""

    def _gathered_bytes(self) -> int:
        """Of whole weights that are there all at once."""
        if self._policy.reshards:
            return 0
        return self._policy.dtype.itemsize * sum(rows.info.numel for rows in self._rows + self._twins)

    def _live_gradients(self) -> int:
        held = self._trained + self._twins
        return storage_bytes(_local(r.parameter.grad) for r in held if r.parameter.grad is not None)


def _rows_of(info: ParameterInfo, parameter: nn.Parameter, shards: Peers, counts: bool) -> Rows:
    """Rows as fully_shard divides them, like torch.chunk: ceil(rows / N) for the first ranks, then what is left.

    A parameter without dims has no rows; all ranks have it, and the first one's counts.
    """
    own = _local(parameter)
    moments = Moments.zeros_like(own) if info.trainable else None
    if not info.local_shape:
        return Rows(info, parameter, 0, moments, counts and shards.rank == 0)
    length = -(-info.local_shape[0] // shards.size)
    first = min(length * shards.rank, info.local_shape[0])
    return Rows(info, parameter, first, moments, counts)


def _local(tensor: Tensor) -> Tensor:
    return local(tensor.detach())
