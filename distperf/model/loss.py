"""Cross entropy as a sum, in fp32, without fp32 copies of the logits and without their other columns.

The sum, not the mean: the trainer divides once by the number of targets of the whole global batch, so that no
micro-batch, rank or short sequence weighs more than its tokens.

Legend: T targets, V vocabulary, N ranks that logits are divided over by columns, C columns of this rank.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.distributed.tensor import DTensor, Shard

from distperf.measure.stopwatch import COMMUNICATION

IGNORE = -100  # a target without loss (torch's own default for ignore_index)

# Rows of logits that exist in fp32 at a time. With V = 8192 and 1024 rows of bf16 logits, head and loss
# peaked at 67 MiB against 109 MiB for F.cross_entropy(logits.float()), at the same speed (one CPU thread).
#
# Of two ranks with 2048 rows and 16000 bf16 columns each, this took 0.15 s and 172 MiB above the logits, of which 62
# are their gradient; torch's loss_parallel, which has no chunks, 1.0 s and 500 MiB (fp32: 0.2 s, 219 MiB; 0.7 s, 500).
ROWS = 256


def loss_sum(logits: Tensor, targets: Tensor) -> Tensor:
    """Sum of cross entropy, () fp32, over targets (...) int64 that are not IGNORE; logits (..., V).

    Logits may be a DTensor divided over V (tensor parallelism), unequally too. They are not gathered: ranks
    exchange three numbers a target, and all get the same sum; the backward pass sends nothing.

    Cost: divided logits, two all-reduces: sends 24 * T * (N - 1) / N bytes a rank. Peak extra 4 * ROWS * C.
    """
    group, first = None, 0
    if isinstance(logits, DTensor):
        group, first = logits.device_mesh.get_group(), _first_column(logits)
        logits = logits.to_local()
    rows, wanted = logits.flatten(0, -2), targets.flatten()
    total: Tensor = _SummedCrossEntropy.apply(rows, wanted, first, group)  # type: ignore[no-untyped-call]
    return total


class _SummedCrossEntropy(torch.autograd.Function):
    """Keeps only logits (T, C) and three numbers a target, and makes the gradient ROWS rows at a time."""

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, targets: Tensor, first: int, group: dist.ProcessGroup | None
    ) -> Tensor:
        columns, mine = _columns(targets, first, logits.shape[1])
        counts = targets != IGNORE
        log_sums, picked = _summarise(logits, columns)
        whole, picked = log_sums, picked * mine
        if group is not None:
            whole, picked = _combine(log_sums, picked, group)
        share = (log_sums - whole).exp_()  # of the row's probability that this rank's columns have
        ctx.save_for_backward(logits, columns, share * counts, mine)
        return (whole - picked).masked_fill_(~counts, 0).sum()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        """Softmax(logits) - one_hot(target), times the incoming gradient; zero where the target is IGNORE."""
        logits, columns, share, mine = ctx.saved_tensors
        scale, hit = (share * grads[0]).unsqueeze(1), (mine * -grads[0]).unsqueeze(1)
        grad_logits = torch.empty_like(logits)
        parts = _in_rows(grad_logits, logits, columns.unsqueeze(1), scale, hit)
        for out, rows, at, by, taken in zip(*parts, strict=True):
            delta = F.softmax(rows, dim=-1, dtype=torch.float32).mul_(by)
            out.copy_(delta.scatter_add_(1, at, taken))
        return grad_logits, None, None, None


def _summarise(logits: Tensor, columns: Tensor) -> tuple[Tensor, Tensor]:
    """Of each row: the log of the sum of exponentials, and the logit in its column; (T,) fp32 each."""
    log_sums = torch.empty(len(logits), dtype=torch.float32, device=logits.device)
    picked = torch.empty_like(log_sums)
    for rows, at, log_sum, pick in zip(*_in_rows(logits, columns, log_sums, picked), strict=True):
        wide = rows.float()
        pick.copy_(wide.gather(1, at.unsqueeze(1)).squeeze(1))
        # One fused pass; torch.logsumexp takes 2.5 times as long on the CPU.
        log_sum.copy_(F.cross_entropy(wide, at, reduction="none")).add_(pick)
    return log_sums, picked


def _combine(log_sums: Tensor, picked: Tensor, group: dist.ProcessGroup) -> tuple[Tensor, Tensor]:
    """The same of whole rows, from those of each rank's columns."""
    largest = log_sums.clone()
    with COMMUNICATION:
        dist.all_reduce(largest, dist.ReduceOp.MAX, group)
    sums = torch.stack(((log_sums - largest).exp_(), picked))
    with COMMUNICATION:
        dist.all_reduce(sums, group=group)
    return sums[0].log_().add_(largest), sums[1]


def _columns(targets: Tensor, first: int, count: int) -> tuple[Tensor, Tensor]:
    """(T,) each target's column among the `count` from `first` on, 0 where it is not there; whether it is."""
    columns = targets - first
    mine = (targets >= 0) & (columns >= 0) & (columns < count)
    return columns.masked_fill_(~mine, 0), mine


def _first_column(logits: DTensor) -> int:
    """Where this rank's columns begin: as DTensor divides, all but the last ranks have ceil(V / N)."""
    mesh = logits.device_mesh
    assert logits.placements == (Shard(logits.dim() - 1),), "logits are divided over the vocabulary alone"
    return mesh.get_local_rank() * -(-logits.shape[-1] // mesh.size())


def _in_rows(*tensors: Tensor) -> list[tuple[Tensor, ...]]:
    return [tensor.split(ROWS) for tensor in tensors]  # type: ignore[no-untyped-call]
