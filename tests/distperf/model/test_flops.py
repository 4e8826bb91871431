import dataclasses

from distperf.model.flops import flops_per_token, matmul_parameters
from distperf.model.llama import build_model
from distperf.recipe.runspec import ModelSpec

LLAMA_7B = ModelSpec("llama", 32, 4096, 32, 32, 11008, 32000, False, 1e4, 1e-5, 0.0)


def test_matmul_parameters_are_all_but_norms_and_look_up():
    """Equal to counting the built model's Linear weights; tying the embedding changes nothing."""
    small = dataclasses.replace(LLAMA_7B, layers=2)
    for spec in (small, dataclasses.replace(small, kv_heads=8)):
        names = [(n, p.numel()) for n, p in build_model(spec).named_parameters() if "norm" not in n]
        assert matmul_parameters(spec) == sum(size for name, size in names if name != "embed_tokens.weight")
        assert matmul_parameters(dataclasses.replace(spec, tied_embedding=True)) == matmul_parameters(spec)


def test_flops_follow_palm():
    """6 per matmul parameter and 12 * layers * hidden * positions: 46.1 GFLOP a token at 7B and 4096."""
    assert flops_per_token(LLAMA_7B, 0) == 6 * matmul_parameters(LLAMA_7B)
    assert flops_per_token(LLAMA_7B, 4096) - flops_per_token(LLAMA_7B, 0) == 12 * 32 * 4096 * 4096
    assert round(flops_per_token(LLAMA_7B, 4096) / 1e9, 1) == 46.1
