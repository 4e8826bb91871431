"""Gradient norm and clipping."""

from __future__ import annotations

import pytest
import torch

from distperf.optim.clip import clip_factor, sum_of_squares


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_norm_of_a_large_tensor_is_exact(dtype):
    """The sum over a million elements, in any piece sizes, is right to 1e-6 (torch's own fp32 norm is not)."""
    tensors = [
        torch.randn(size, generator=torch.Generator().manual_seed(size)).to(dtype)
        for size in (1_000_001, 1, 0)
    ]
    exact = sum(t.double().square().sum() for t in tensors)
    assert sum_of_squares(tensors) == pytest.approx(float(exact), rel=1e-6)
    assert sum_of_squares([]) == 0.0


def test_clip_factor_is_that_of_torch():
    """Gradients longer than the limit get that length; shorter ones, and all without a limit, stay as they are."""
    grads = torch.tensor([3.0, 4.0])
    assert clip_factor(sum_of_squares([grads]), 1.0) == pytest.approx(0.2, rel=1e-6)
    assert clip_factor(sum_of_squares([grads]), 10.0) == 1.0
    assert clip_factor(sum_of_squares([grads]), None) == 1.0


def test_an_infinite_norm_gives_no_nan():
    """One infinite gradient scales the finite ones to zero."""
    assert clip_factor(torch.tensor(float("inf"), dtype=torch.float64), 1.0) == 0.0
