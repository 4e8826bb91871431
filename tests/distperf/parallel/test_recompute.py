"""What blocks keep between forward and backward pass: less with each mode, and the same gradients to the last bit."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.profiler import profile

from distperf.model.dropout import Draws, attach_draws
from distperf.model.init import fill_for
from distperf.model.llama import Llama, build_model
from distperf.parallel.recompute import apply_recompute
from distperf.recipe.runspec import ModelSpec

SPEC = ModelSpec("llama", 4, 64, 4, 2, 192, 61, False, 1e4, 1e-5, 0.1)
ROWS = 2 * 64  # 2 samples of 64 positions


def make_model(mode: str, dtype: torch.dtype) -> tuple[Llama, Draws]:
    model = build_model(SPEC).to_empty(device="cpu").to(dtype)
    fill = fill_for(SPEC, 1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(fill(name, parameter.shape, 0, parameter.numel()).view_as(parameter))
    draws = Draws(1, torch.device("cpu"))
    attach_draws(model, draws)
    apply_recompute(model, mode, draws)
    return model, draws


def stream(seed: int, dtype: torch.dtype) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(2, 64, SPEC.hidden, generator=generator).to(dtype).requires_grad_()


def through(model: Llama, x: Tensor) -> Tensor:
    for layer in model.layers:
        x = layer(x)
    return x


def kept_and_peak_bytes(mode: str, dtype: torch.dtype) -> tuple[int, int]:
    """Live bytes that a forward pass of the layers leaves, and the most there are in the backward pass after it."""
    model, _ = make_model(mode, dtype)
    x = stream(1, dtype)
    through(model, x).sum().backward()  # from now on gradients have their memory
    with profile(profile_memory=True) as forward:
        out = through(model, x).sum()
    with profile(profile_memory=True) as backward:
        out.backward()
    kept = peak = live = sum(changes(forward))
    for change in changes(backward):
        live += change
        peak = max(peak, live)
    return kept, peak


def changes(profiled: profile) -> list[int]:
    """Bytes allocated (positive) and freed, in order of time."""
    events = [e for e in profiled.profiler.kineto_results.events() if e.name() == "[memory]"]
    return [e.nbytes() for e in sorted(events, key=lambda e: e.start_ns())]


def gradients(model: nn.Module) -> list[Tensor]:
    return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_each_mode_keeps_less_than_the_one_before(dtype: torch.dtype) -> None:
    """Live bytes, as the allocator counts them; full keeps one input a layer, and 5 KB of a generator's state."""
    found = {mode: kept_and_peak_bytes(mode, dtype) for mode in ("none", "selective", "full")}
    kept, peak = zip(*found.values(), strict=True)
    assert kept[0] > 1.5 * kept[1] > 1.5 * 3 * kept[2]
    assert peak[0] > 1.3 * peak[1] > 1.3 * 1.3 * peak[2]
    element, width = dtype.itemsize, SPEC.hidden
    wide, keys, ffn = (
        4 * width,
        width // 2,
        SPEC.ffn,
    )  # outputs of q, attention, o and down; of k and v; of gate and up
    selective = ROWS * element * (width + wide + 2 * keys + 2 * ffn)
    assert 0.95 * selective <= kept[1] / SPEC.layers <= 1.1 * selective  # the first input was there before
    assert 0.7 * ROWS * width * element <= kept[2] / SPEC.layers <= ROWS * width * element + 6000


@pytest.mark.parametrize("mode", ["selective", "full"])
def test_recomputed_values_are_those_of_the_forward_pass(mode: str) -> None:
    """Gradients are bitwise those without, dropout included, although another micro-batch went forward meanwhile."""
    plain, plain_draws = make_model("none", torch.float32)
    model, draws = make_model(mode, torch.float32)
    for first in (0, 2):
        plain_draws.at(first)
        through(plain, stream(first, torch.float32)).sum().backward()
    losses = []
    for first in (0, 2):
        draws.at(first)
        losses.append(through(model, stream(first, torch.float32)).sum())
    for loss in losses:
        loss.backward()
    for found, expected in zip(gradients(model), gradients(plain), strict=True):
        assert torch.equal(found, expected)


def test_names_stay_as_they_are() -> None:
    """Blocks are not wrapped in modules: checkpoints and plans find what they know."""
    plain, _ = make_model("none", torch.float32)
    model, _ = make_model("full", torch.float32)
    assert list(model.state_dict()) == list(plain.state_dict())
    assert [name for name, _ in model.named_modules()] == [name for name, _ in plain.named_modules()]
