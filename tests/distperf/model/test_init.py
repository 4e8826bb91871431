import dataclasses
import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from distperf.model.init import BLOCK, fill_for, initial_values
from distperf.model.llama import build_model
from distperf.recipe.runspec import ModelSpec

SHAPE = (3, BLOCK // 2 + 7)
TOTAL = 3 * (BLOCK // 2 + 7)
NAME = "layers.0.mlp.up_proj.weight"
SPEC = ModelSpec("llama", 8, 512, 8, 8, 1024, 1000, True, 1e4, 1e-5, 0.0)
WHOLE = initial_values(5, NAME, SHAPE, 0, TOTAL, layers=8)


@settings(max_examples=30)
@given(st.lists(st.integers(0, TOTAL), max_size=4))
def test_any_cutting_gives_the_same_bytes(cuts: list[int]):
    """A parameter is equal however it is cut: on one process, or in shards of any size and alignment."""
    edges = [0, *sorted(cuts), TOTAL]
    parts = [initial_values(5, NAME, SHAPE, a, b, layers=8) for a, b in itertools.pairwise(edges)]
    assert torch.equal(torch.cat(parts), WHOLE)


def test_names_seeds_and_blocks_differ():
    """No two parameters, seeds or blocks share values; a seed above 32 bits is not folded."""
    streams = [
        initial_values(seed, name, (2, BLOCK), low, low + 1000, layers=8)
        for seed in (5, 6, 5 + 2**32)
        for name in (NAME, "layers.1.mlp.up_proj.weight")
        for low in (0, BLOCK)
    ]
    assert len({tuple(s.tolist()) for s in streams}) == len(streams)


@pytest.mark.parametrize(
    ("name", "std"),
    [
        ("embed_tokens.weight", 0.02),
        ("lm_head.weight", 0.02),
        ("layers.3.self_attn.q_proj.weight", 0.02),
        ("layers.3.self_attn.o_proj.weight", 0.005),
        ("layers.3.mlp.down_proj.weight", 0.005),
    ],
)
def test_matrices_are_normal_and_residual_outputs_narrower(name: str, std: float):
    """Mean zero, deviation 0.02, or 0.02 / sqrt(2 * layers) where a layer writes to the residual stream."""
    values = initial_values(0, name, (512, 512), 0, 512 * 512, layers=8)
    assert values.dtype == torch.float32
    assert abs(values.mean().item()) < 4 * std / 512
    assert values.std().item() == pytest.approx(std, rel=0.01)
    assert (values.abs() < 3 * std).float().mean().item() == pytest.approx(0.9973, abs=0.001)


def test_every_parameter_of_a_model_is_filled():
    """Names from `named_parameters` are all a fill needs; norms are ones and a tied weight appears once."""
    model = build_model(dataclasses.replace(SPEC, layers=1, hidden=16, ffn=16, heads=2, kv_heads=2, vocab=11))
    fill = fill_for(SPEC, seed=1)
    values = {name: fill(name, p.shape, 0, p.numel()) for name, p in model.named_parameters()}
    assert "lm_head.weight" not in values
    for name, parameter in model.named_parameters():
        assert values[name].shape == (parameter.numel(),)
        assert torch.equal(values[name], torch.ones(parameter.numel())) == ("norm" in name)
