"""Arithmetic a model needs for each trained token, for model FLOPs utilisation (MFU). Pure."""

from __future__ import annotations

from distperf.recipe.estimate import layer_parameter_count
from distperf.recipe.runspec import ModelSpec


def matmul_parameters(spec: ModelSpec) -> int:
    """Parameters that take part in a matrix product: all but the norms and the embedding's look-up.

    The output head counts whether or not it shares the embedding's weight.
    """
    norms = 2 * spec.hidden
    return spec.layers * (layer_parameter_count(spec) - norms) + spec.vocab * spec.hidden


def flops_per_token(spec: ModelSpec, seq_len: int) -> int:
    """Floating-point operations of forward and backward for one token: 6 N + 12 L D S.

    Source: PaLM, arXiv:2204.02311, appendix B, with L layers, D = heads times head size and S positions. As
    there, attention is counted in full although half of it is masked, and recomputation is not counted.
    """
    return 6 * matmul_parameters(spec) + 12 * spec.layers * spec.hidden * seq_len
