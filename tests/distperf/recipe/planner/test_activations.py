"""What the formulas say that a model's passes leave and need, against what the allocator counts."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch.profiler import profile

from distperf.model import loss
from distperf.model.dropout import Draws, attach_draws
from distperf.model.llama import build_model
from distperf.offload import disk, shelf, spans
from distperf.parallel import buckets, flat
from distperf.parallel.recompute import apply_recompute
from distperf.recipe.offload_rules import GRADIENTS_THERE, WEIGHTS_THERE
from distperf.recipe.planner import activations, drives, transient
from distperf.recipe.planner.activations import Shape
from distperf.recipe.runspec import ModelSpec

SPEC = ModelSpec("llama", 3, 64, 4, 2, 192, 512, False, 1e4, 1e-5, 0.0)
# What of the model, samples and positions makes which moment the worst: the loss, a block, the head.
CASES: list[tuple[dict[str, Any], int, int]] = [
    ({"vocab": 2000}, 4, 256),
    ({"vocab": 64, "kv_heads": 4, "dropout": 0.1}, 4, 128),
    ({"hidden": 128, "ffn": 384, "vocab": 3000, "layers": 1, "tied_embedding": True}, 1, 64),
]


def counted(model: ModelSpec, mode: str, dtype: torch.dtype, samples: int, positions: int) -> tuple[int, int]:
    """Bytes that forward pass and loss leave, and the most there are until the backward pass is through."""
    module = build_model(model).to_empty(device="cpu").to(dtype)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(0, 0.02)
    draws = Draws(1, torch.device("cpu"))
    attach_draws(module, draws)
    apply_recompute(module, mode, draws)
    tokens = torch.randint(0, model.vocab, (samples, positions))
    loss.loss_sum(module(tokens), tokens).backward()  # from now on gradients have their memory
    with profile(profile_memory=True) as forward:
        total = loss.loss_sum(module(tokens), tokens)
    with profile(profile_memory=True) as backward:
        total.backward()
    kept = live = most = sum(changes(forward))
    for change in changes(backward):
        live += change
        most = max(most, live)
    return kept, most


def changes(profiled: profile) -> list[int]:
    events = [e for e in profiled.profiler.kineto_results.events() if e.name() == "[memory]"]
    return [e.nbytes() for e in sorted(events, key=lambda e: e.start_ns())]


def planned(model: ModelSpec, mode: str, width: int, samples: int, positions: int) -> tuple[int, int]:
    shape = Shape(model, samples * positions, width)
    layers = model.layers * activations.block_kept(shape, mode) + activations.embedding_kept(shape)
    kept = layers + activations.head_kept(shape)
    moments = (
        kept + activations.loss_working(shape),
        layers + activations.head_working(shape),
        layers + activations.block_working(shape, mode) + activations.tied_waiting(shape, at_the_end=False),
        activations.embedding_working(shape) + activations.tied_waiting(shape, at_the_end=True),
    )
    return kept, max(moments)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["none", "selective", "full"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_formulas_are_what_the_allocator_counts(precision: str, mode: str) -> None:
    """Kept bytes within 0.5 percent and the peak within 3, whichever moment is the worst."""
    dtype, width = {"fp32": (torch.float32, 4), "bf16": (torch.bfloat16, 2)}[precision]
    for changed, samples, positions in CASES:
        model = dataclasses.replace(SPEC, **changed)
        found = planned(model, mode, width, samples, positions)
        wanted = counted(model, mode, dtype, samples, positions)
        assert found[0] == pytest.approx(wanted[0], rel=0.005)
        assert found[1] == pytest.approx(wanted[1], rel=0.03)


def test_constants_are_those_of_the_runtime() -> None:
    """The planner loads no torch, so it has copies of a few numbers."""
    assert activations.LOSS_ROWS == loss.ROWS
    assert transient.BUCKET_BYTES == buckets.BUCKET_BYTES
    assert transient.REDUCING == flat.MAX_REDUCING
    assert (drives.SPAN, drives.AHEAD) == (spans.SPAN, disk.AHEAD)
    assert (WEIGHTS_THERE, GRADIENTS_THERE) == (shelf.STORING + 2, shelf.STORING + 1)


@pytest.mark.parametrize("mode", ["none", "selective", "full"])
def test_activations_grow_with_what_they_are_made_of(mode: str) -> None:
    """K03: micro-batch, sequence and width, each doubled, double what a block keeps; attention is not quadratic."""
    model = dataclasses.replace(SPEC, hidden=512, ffn=1536, heads=8, kv_heads=4)
    once = activations.block_kept(Shape(model, 4096, 2), mode)
    assert activations.block_kept(Shape(model, 8192, 2), mode) == pytest.approx(2 * once, rel=0.01)
    wide = dataclasses.replace(model, hidden=1024, ffn=3072)
    assert activations.block_kept(Shape(wide, 4096, 2), mode) == pytest.approx(2 * once, rel=0.01)


def test_the_loss_has_a_term_of_its_own() -> None:
    """Logits, their gradient and a few rows in fp32 go with the vocabulary, and are divided over tp."""
    small, large = (Shape(dataclasses.replace(SPEC, vocab=v), 4096, 2) for v in (1000, 128_000))
    assert activations.loss_working(large) == 128 * activations.loss_working(small)
    assert activations.logits_bytes(large) == 4096 * 128_000 * 2
    assert activations.logits_bytes(dataclasses.replace(large, tp=4)) == 4096 * 32_000 * 2
