"""Attention over positions that ranks share, by exchanging heads for positions.

Outside of attention each rank holds all heads of some positions; inside, some heads of all positions. So each head
is computed as in one process, with the same kernel.

Shapes: N ranks, B samples, H query heads, G key/value heads, S positions, s = S / N of one rank, K head size.

Source: Jacobs et al., arXiv:2309.14509 (DeepSpeed-Ulysses).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from distperf.measure.stopwatch import COMMUNICATION
from distperf.model.llama import causal_attention
from distperf.parallel.mesh import named_group


@dataclass(frozen=True)
class Ulysses:
    """`Attention.attend` where the ranks of `group` hold a piece of the sequence each, in order of rank."""

    group: dist.ProcessGroup

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attend as in one process. q (B, H, s, K), k and v (B, G, s, K); as q. N divides H and G.

        Cost: sends (N - 1) / N * B * s * K * (2H + 2G) elements a rank, and as many in the backward pass. Peak extra
        q, k and v twice.
        """
        size = self.group.size()
        parts = [
            torch.unflatten(t, 1, (size, -1)).movedim(1, 0) for t in (q, k, v)
        ]  # (N, B, H / N or G / N, s, K)
        whole = exchange(torch.cat(parts, dim=2), self.group.group_name).movedim(0, 2).flatten(2, 3)
        out = causal_attention(
            *torch.split_with_sizes(whole, [part.shape[2] for part in parts], dim=1)
        )  # (B, H / N, S, K)
        own: Tensor = exchange(
            torch.unflatten(out, 2, (size, -1)).movedim(2, 0), self.group.group_name
        )  # (N, B, H / N, s, K)
        return own.movedim(0, 1).flatten(1, 2)


@torch.library.custom_op("distperf::exchange", mutates_args=())
def exchange(x: Tensor, group: str) -> Tensor:
    """Send x[i] to rank i of the named group; what rank i sent stands at [i]. x (N, ...).

    One operator, so that recomputation can keep its result rather than send again, and compilers let it be.

    Cost: sends (N - 1) / N of x's bytes a rank, and as many in the backward pass.
    """
    x = x.contiguous()
    out = torch.empty_like(x)
    with COMMUNICATION:
        dist.all_to_all_single(out, x, group=named_group(group))
    return out


@exchange.register_fake
def _(x: Tensor, group: str) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _keep_group(ctx: Any, inputs: tuple[Tensor, str], output: Tensor) -> None:
    ctx.group = inputs[1]


def _exchange_back(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
    return exchange(grad, ctx.group), None


exchange.register_autograd(_exchange_back, setup_context=_keep_group)
