"""A module put under torch's fully_shard, with sums in place of means and the fastest means of the backend."""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)
from torch.distributed.fsdp._fully_shard._fsdp_api import AllGather, Comm, ReduceScatter

from distperf.measure.stopwatch import COMMUNICATION
from distperf.model.blocks import repeated_blocks
from distperf.parallel.collectives import Peers, start_gather, start_reduce
from distperf.parallel.materialize import local, place_buffers, replace_parameters
from distperf.parallel.scratch import Scratch

FIRST_TAG = 16  # of messages; below are those of collectives


@dataclass(frozen=True)
class Policy:
    """How weights are divided and gathered. `reshards`: let go of them between forward and backward pass.

    `params`: where shards are while their layer does not compute, none (on the device), cpu or nvme.
    """

    dtype: torch.dtype  # of gathered weights
    mesh: DeviceMesh  # shards, or copies x shards
    reshards: bool
    params: str = "none"

    def home(self, device: torch.device) -> torch.device:
        """Where shards are while they are updated."""
        return device if self.params == "none" else torch.device("cpu")


def shard_part(part: nn.Module, policy: Policy, shards: Peers, device: torch.device) -> None:
    """Divide a module on the meta device, and place its buffers; `give_memory` is next.

    Each of its blocks is gathered by itself, what lies outside them together. Parameters without dims cannot be
    divided: every rank has them whole, in fp32, with gradients of its own.
    """
    # fully_shard takes contiguous parameters only. Nothing is in them yet, so they may as well be that.
    replace_parameters(part, lambda old: torch.empty(local(old).shape, device="meta"))
    place_buffers(part, device)
    precision = MixedPrecisionPolicy(
        param_dtype=None if policy.dtype == torch.float32 else policy.dtype,
        reduce_dtype=torch.float32,
        cast_forward_inputs=False,  # as in stages 0 to 2, where what is fp32 on purpose stays so
    )
    reshards = (
        None if policy.reshards else False
    )  # None: all but the outermost, which is wanted at once again
    scalars = {parameter for parameter in part.parameters() if not parameter.dim()}
    moves = policy.home(device) != device
    offload = CPUOffloadPolicy(pin_memory=policy.params == "cpu") if moves else OffloadPolicy()
    for module in (*repeated_blocks(part), part):
        fully_shard(
            module,
            mesh=policy.mesh,
            mp_policy=precision,
            reshard_after_forward=reshards,
            ignored_params=scalars,
            offload_policy=offload,
        )
    _expect_views(part)
    for index, module in enumerate(m for m in part.modules() if isinstance(m, FSDPModule)):
        _set_reductions(module, shards, FIRST_TAG + 2 * index)


def give_memory(part: nn.Module, policy: Policy, device: torch.device) -> None:
    """Memory for this rank's rows that have none yet; values are still to come."""
    home = policy.home(device)
    # What to_empty does, but for buffers, which have their values by now.
    part._apply(lambda t: torch.empty_like(t, device=home if t.dim() else device) if t.is_meta else t)  # type: ignore[no-untyped-call]


def _expect_views(part: nn.Module) -> None:
    """Logits may be a view (a linear layer's with a bias are): nothing changes them in place, so torch need not warn.

    It does warn of a block that returns a view: what is added to that in place can lose gradients.
    """
    name = re.escape(f"FSDP2-wrapped module (FSDP{type(part).__name__}) returned a view tensor")
    warnings.filterwarnings("ignore", message=name)


def _set_reductions(module: FSDPModule, shards: Peers, tag: int) -> None:
    """Sums, since the loss is divided already; zeros for parameters that only other ranks used.

    A tag for each module: where ranks differ in the layers they use, they wait for each other (and the stall watch
    says where) instead of taking one layer's weights for another's.
    """
    module.set_force_sum_reduction_for_comms(True)
    module.set_gradient_divide_factor(1.0)
    module.set_reduce_scatter_unused_params(True, recurse=False)
    if shards.size > 1 and shards.exchanges:
        module.set_custom_all_gather(_Gather(shards, tag))
        module.set_custom_reduce_scatter(_Reduce(shards, tag + 1))


class _Exchange(Comm):
    """What fully_shard asks of a collective besides the call itself: memory."""

    def __init__(self, peers: Peers, tag: int) -> None:
        self._peers = peers
        self._tag = tag

    def allocate(
        self, size: Sequence[int | torch.SymInt], *, dtype: torch.dtype, device: torch.device
    ) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)


class _Gather(_Exchange, AllGather):
    """All-gather by exchange. fully_shard has put this rank's shard where it belongs in the output."""

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, async_op: bool = False
    ) -> None:
        with COMMUNICATION:
            start_gather(output_tensor, self._peers, tag=self._tag).wait()


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
        with COMMUNICATION:
            start_reduce(input_tensor, output_tensor, self._peers, scratch, tag=self._tag).wait()
