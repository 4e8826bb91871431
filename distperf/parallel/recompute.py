"""Activation checkpointing: what a block computed is let go of after forward, and computed again for backward.

    mode        kept of a block between forward and backward
    none        every tensor that a backward formula needs
    selective   its input, the outputs of matrix products, attention and attention's communication; the rest (norms,
                rotation, activation functions, dropout, additions) is cheap and computed again
    full        its input

Of a Llama block that is, in elements a position (D hidden, M = G * K width of keys, F ffn): full D, selective
5D + 2M + 2F, none about 8D + 2M + 4F, besides masks of dropout and what is in fp32 under a narrower dtype.
A block's recomputed tensors live while its own backward pass runs, so the peak is that of one block more. Values are
the same to the last bit: dropout's masks are asked for the samples of that forward pass.

Source: Chen et al., arXiv:1604.06174; Korthikanti et al., arXiv:2205.05198 (selective).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from distperf.model.blocks import repeated_blocks
from distperf.model.dropout import Draws

KEPT = {
    "aten::mm",
    "aten::addmm",
    "aten::_scaled_mm",
    "aten::_scaled_dot_product_flash_attention_for_cpu",
    "aten::_scaled_dot_product_flash_attention",
    "aten::_scaled_dot_product_efficient_attention",
    "aten::_scaled_dot_product_cudnn_attention",
    "distperf::exchange",
    "distperf::ring_attention",
}


def apply_recompute(module: nn.Module, mode: str, draws: Draws) -> None:
    """Let each block of a model, or of a pipeline stage, keep only what `mode` says. Names stay as they are.

    Cost: time, of about the forward pass (full) or its elementwise part (selective). Communication inside blocks
    is repeated, but for what is kept.
    """
    if mode == "none":
        return
    for block in repeated_blocks(module):
        block.forward = Recomputed(block.forward, draws, selective=mode == "selective")


class Recomputed:
    """A block's forward, to be run again in backward."""

    def __init__(self, forward: Callable[..., Any], draws: Draws, *, selective: bool) -> None:
        self._forward = forward
        self._draws = draws
        self._options: dict[str, Any] = {"use_reentrant": False}
        if selective:
            self._options["context_fn"] = _selective_contexts

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """As the block's forward."""
        if torch.compiler.is_compiling():  # which captures the draws with everything else
            return checkpoint(self._forward, *args, **self._options, **kwargs)
        return checkpoint(self._drawn, self._draws.first, *args, **self._options, **kwargs)

    def _drawn(self, first: Tensor, *args: Any, **kwargs: Any) -> Any:
        with self._draws.again(first):
            return self._forward(*args, **kwargs)


def _policy(_ctx: Any, op: OpOverload, *_args: Any, **_kwargs: Any) -> CheckpointPolicy:
    name: str = op.name()  # type: ignore[no-untyped-call]  # torch has no annotation here
    return CheckpointPolicy.MUST_SAVE if name in KEPT else CheckpointPolicy.PREFER_RECOMPUTE


_selective_contexts = partial(create_selective_checkpoint_contexts, _policy)
