"""AdamW over flat shards, by torch's fused kernel (one pass over memory).

The kernel is called as such: what `torch.optim.adamw` does around it (grouping tensors, counting steps) takes longer
than a block of an update on the host may.

Source: Loshchilov and Hutter, arXiv:1711.05101.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from distperf.optim.groups import Treatment
from distperf.recipe.runspec import OptimizerSpec


@dataclass(frozen=True)
class Moments:
    """Adam's state of one flat fp32 tensor of weights."""

    exp_avg: Tensor
    exp_avg_sq: Tensor

    @classmethod
    def zeros_like(cls, weights: Tensor) -> Moments:
        """Those of weights that have not moved yet."""
        return cls(torch.zeros_like(weights), torch.zeros_like(weights))


@dataclass(frozen=True)
class Update:
    """What one step is made with. `step` counts from 1; `grad_scale` multiplies the gradients."""

    spec: OptimizerSpec
    step: int
    lr: float
    grad_scale: Tensor | float

    @torch.no_grad()
    def apply(
        self, weights: list[Tensor], grads: list[Tensor], moments: list[Moments], treatment: Treatment
    ) -> None:
        """Move fp32 `weights`, all treated alike, by their fp32 `grads`, which are scaled in place in the same pass."""
        if not weights:
            return
        torch._fused_adamw_(
            weights,
            grads,
            [m.exp_avg for m in moments],
            [m.exp_avg_sq for m in moments],
            [],
            [torch.full((), float(self.step), device=w.device) for w in weights],
            amsgrad=False,
            lr=self.lr * treatment.lr_scale,
            beta1=self.spec.betas[0],
            beta2=self.spec.betas[1],
            weight_decay=treatment.weight_decay,
            eps=self.spec.eps,
            maximize=False,
            grad_scale=self._divisor(weights[0]),
            found_inf=None,
        )

    def _divisor(self, like: Tensor) -> Tensor | None:
        """The fused kernel divides gradients by its grad_scale (a loss scale), hence the reciprocal."""
        if isinstance(self.grad_scale, Tensor):
            return self.grad_scale.to(like.device, torch.float32).reciprocal()
        if self.grad_scale == 1.0:
            return None
        return torch.full((), 1.0 / self.grad_scale, device=like.device)
