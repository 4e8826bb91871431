"""Attention over a block of keys with the log-sum-exp of its scores, from which several blocks can be merged.

Shapes: B samples, H query heads, G key/value heads, Q query rows, C key rows, K head size.

On a CPU these are the kernels that F.scaled_dot_product_attention uses there. The CUDA ones have not been run.

Source: Dao et al., arXiv:2205.14135 (FlashAttention); its section 3.1 and appendix B.4 for the backward pass.
"""

from __future__ import annotations

import torch
from torch import Tensor

from distperf.errors import DistperfError

aten = torch.ops.aten


def attend_block(q: Tensor, k: Tensor, v: Tensor, *, causal: bool) -> tuple[Tensor, Tensor]:
    """Output (B, H, Q, K) as if there were no other keys, and the log of each row's sum of exp(score) (B, H, Q) fp32.

    q (B, H, Q, K), k and v (B, G, C, K); `causal` where Q and C are the same positions.

    Raises:
        DistperfError: fp32 on CUDA, for which there is no such kernel.
    """
    if q.device.type == "cpu":
        out, lse = aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal)
        return out, lse
    _check_half(q)
    k, v = (_repeated(t, q.shape[1]) for t in (k, v))
    out, lse, *_ = aten._scaled_dot_product_flash_attention(q, k, v, 0.0, causal)
    return out, lse


def attend_block_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, *, causal: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v by way of this block's scores.

    `out` and `lse` are those of all blocks together: with them a block's scores are probabilities among all keys.
    """
    if q.device.type == "cpu":
        dq, dk, dv = aten._scaled_dot_product_flash_attention_for_cpu_backward(
            grad, q, k, v, out, lse, 0.0, causal
        )
        return dq, dk, dv
    groups = k.shape[1]
    k, v = (_repeated(t, q.shape[1]) for t in (k, v))
    unused = torch.empty(0, dtype=torch.int64, device=q.device)
    dq, dk, dv = aten._scaled_dot_product_flash_attention_backward(
        grad, q, k, v, out, lse, None, None, q.shape[2], k.shape[2], 0.0, causal, unused, unused
    )
    return dq, _summed(dk, groups), _summed(dv, groups)


def merge(out: Tensor, lse: Tensor, part: Tensor, part_lse: Tensor) -> None:
    """Bring a block's result into that of the blocks so far, in place; `out` and `lse` are fp32."""
    out.lerp_(part.float(), torch.sigmoid(part_lse - lse).unsqueeze(-1))
    lse.copy_(torch.logaddexp(lse, part_lse))


def _repeated(t: Tensor, heads: int) -> Tensor:
    return t.repeat_interleave(heads // t.shape[1], dim=1)


def _summed(grad: Tensor, groups: int) -> Tensor:
    return torch.unflatten(grad, 1, (groups, -1)).sum(2)


def _check_half(q: Tensor) -> None:
    if q.dtype == torch.float32:
        raise DistperfError(
            "ring attention on CUDA has a kernel for bf16 and fp16 only; set precision: bf16, or parallel.cp_method: "
            "ulysses"
        )
