"""One gradient norm for the whole model, and the factor that clips it."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor

# Squares are added up in fp32 only inside a row of this many elements, and in float64 from there on: over six
# million fp32 elements torch's vector_norm alone was off by 2e-4.
ROW = 4096


@torch.no_grad()
def squares(tensor: Tensor) -> Tensor:
    """() float64: the sum of squares of all elements of a contiguous tensor, no slower than an fp32 norm."""
    flat = tensor.view(-1)
    whole = flat.numel() // ROW * ROW
    norms: list[Tensor] = [
        torch.linalg.vector_norm(rows, dim=1, dtype=torch.float32).double()
        for rows in (flat[:whole].view(-1, ROW), flat[whole:].view(1, -1))
    ]
    return torch.stack([norm.square().sum() for norm in norms]).sum()


def sum_of_squares(tensors: Iterable[Tensor]) -> Tensor:
    """() float64: of all elements of contiguous tensors."""
    return total(squares(tensor) for tensor in tensors)


def total(values: Iterable[Tensor]) -> Tensor:
    """() float64: their sum, one after the other, so that it is the same however each was come by."""
    found = torch.zeros((), dtype=torch.float64)
    for value in values:
        found = value + found
    return found


def global_norm_sq(share: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """() float64: the squared norm over all ranks of `group` (None: this rank alone), from each rank's share.

    Shares count every parameter once (replicated ones are divided among ranks), so their sum is the norm.

    Cost: one all-reduce of 8 bytes.
    """
    if group is None:
        return share
    total = share.clone()
    dist.all_reduce(total, group=group)
    return total


def clip_factor(total_norm_sq: Tensor, max_norm: float | None) -> Tensor | float:
    """What gradients are multiplied by so that their norm is at most `max_norm`; 1.0 where there is no limit.

    As torch.nn.utils.clip_grad_norm_: max_norm / (norm + 1e-6), never above 1. Stays on the device.
    """
    if max_norm is None:
        return 1.0
    return (max_norm / (total_norm_sq.sqrt() + 1e-6)).clamp(max=1.0).float()
