"""Context parallelism: the ranks of a group hold every sequence together, each the rows of some positions.

Only attention mixes positions, so only attention communicates; all else works on the rows that are here. The ranks
of the group train on the same samples; their losses and gradients add up like those of ranks with other samples.
"""

from __future__ import annotations

from collections.abc import Callable

import torch.distributed as dist
from torch import Tensor, nn

from distperf.errors import DistperfError
from distperf.model.dropout import Dropout
from distperf.model.llama import Attention
from distperf.model.span import Span
from distperf.parallel.ring import Ring
from distperf.parallel.ulysses import Ulysses

METHODS: dict[str, Callable[[dist.ProcessGroup], Callable[[Tensor, Tensor, Tensor], Tensor]]] = {
    "ulysses": Ulysses,
    "ring": Ring,
}


def context_span(rank: int, size: int, method: str) -> Span:
    """The positions that rank `rank` of `size` holds: a run of them, or for ring an early and a late piece."""
    if method == "ring":
        return Span((rank, 2 * size - 1 - rank), 2 * size)
    return Span((rank,), size)


def context_slice(tensor: Tensor, rank: int, size: int, method: str) -> Tensor:
    """What of inputs or targets (B, S) this rank holds: (B, S / size). As `context_rules` has it, pieces divide S."""
    positions = context_span(rank, size, method).positions(tensor.shape[1] // size, tensor.device)
    return tensor[:, positions]


def apply_context_parallel(module: nn.Module, group: dist.ProcessGroup, method: str) -> None:
    """Let a model, or a part of one, work on rows that `context_slice` gives it. Comes before tensor parallelism.

    Raises:
        DistperfError: the module has no attention that can be told to do so.

    Cost: as `Ulysses` or `Ring` for every layer and forward pass.
    """
    span = context_span(group.rank(), group.size(), method)
    attentions = [child for child in module.modules() if isinstance(child, Attention)]
    if not attentions:
        raise DistperfError(
            "parallel.cp: this model's attention cannot be divided over ranks; set parallel.cp: 1"
        )
    for attention in attentions:
        attention.attend = METHODS[method](group)
        attention.span = span
    for child in module.modules():
        if isinstance(child, Dropout):
            child.span = span


def divide_rows(module: nn.Module, rank: int, size: int) -> None:
    """Tell dropouts that they get the `rank`th of `size` runs of rows, as with sequence parallelism."""
    for child in module.modules():
        if isinstance(child, Dropout):
            child.span = child.span.part(rank, size)
