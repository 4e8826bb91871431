"""AdamW on flat shards."""

from __future__ import annotations

import pytest
import torch

from distperf.optim.adamw import Moments, Update
from distperf.optim.groups import Treatment
from distperf.recipe.runspec import OptimizerSpec, ScheduleSpec

SPEC = OptimizerSpec("adamw", 1e-2, (0.9, 0.95), 1e-8, 0.1, ScheduleSpec("constant", 0, 0, 0.0), ())


@pytest.mark.parametrize(("lr_scale", "decay"), [(1.0, 0.1), (1.0, 0.0), (0.5, 0.3)])
def test_the_update_is_that_of_torch(lr_scale, decay):
    """Five steps of scaled gradients equal torch.optim.AdamW's on gradients scaled beforehand."""
    ours, theirs = torch.linspace(-1, 1, 50), torch.linspace(-1, 1, 50).requires_grad_()
    moments = Moments.zeros_like(ours)
    treatment = Treatment(lr_scale, decay)
    lr = SPEC.lr * lr_scale
    optimizer = torch.optim.AdamW([theirs], lr=lr, betas=SPEC.betas, eps=SPEC.eps, weight_decay=decay)
    for step in range(1, 6):
        grad = torch.randn(50, generator=torch.Generator().manual_seed(step))
        theirs.grad = grad * 0.25
        optimizer.step()
        scale = torch.tensor(0.25) if step % 2 else 0.25
        Update(SPEC, step, SPEC.lr, scale).apply([ours], [grad.clone()], [moments], treatment)
    torch.testing.assert_close(ours, theirs.detach(), rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(moments.exp_avg_sq, optimizer.state[theirs]["exp_avg_sq"], rtol=1e-6, atol=0)
