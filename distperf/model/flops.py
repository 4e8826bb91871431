"""Arithmetic a model needs for each trained token, for model FLOPs utilisation (MFU). Pure."""

from __future__ import annotations

from distperf.recipe.runspec import ModelSpec


def matmul_parameters(spec: ModelSpec) -> int:
    """Parameters that take part in a matrix product: all but the norms and the embedding's look-up.

    The output head counts whether or not it shares the embedding's weight.
    """
    kv_size = spec.kv_heads * (spec.hidden // spec.heads)
    attention = 2 * spec.hidden * spec.hidden + 2 * spec.hidden * kv_size
    return spec.layers * (attention + 3 * spec.hidden * spec.ffn) + spec.vocab * spec.hidden


def flops_per_token(spec: ModelSpec, seq_len: int) -> int:
    """Floating-point operations of forward and backward for one token: 6 N + 12 L D S.

    Source: PaLM, arXiv:2204.02311, appendix B, with L layers, D = heads times head size and S positions. As
    there, attention is counted in full although half of it is masked, and recomputation is not counted.
    """
    return 6 * matmul_parameters(spec) + 12 * spec.layers * spec.hidden * seq_len
