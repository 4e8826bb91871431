"""Model shapes by name. From 1b up they are published Llama shapes; below, shapes that suit CPUs and small GPUs.

A name says the size with the vocabulary the shape is meant for: byte text (257) up to 12m, 8192 tokens for 28m, and
32000 from 110m up (1b, 3b and 8b are larger with the 128256 tokens they were published with: 1.2, 3.2 and 8.0 billion
parameters, and 8b is 7.2 billion with 32000). A preset brings no vocabulary of its own: it comes from the tokenizer.

Source: Llama 2 (arXiv:2307.09288) for 13b; Code Llama (arXiv:2308.12950) for 34b; Llama 3 (arXiv:2407.21783) for 8b and
70b; the model cards of Llama 3.2 for 1b and 3b.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Preset:
    """A Llama-family shape without its vocabulary."""

    layers: int
    hidden: int
    heads: int
    ffn: int
    kv_heads: int | None = None  # None: as many as heads
    tied_embedding: bool = False
    rope_theta: float = 10_000.0
    norm_eps: float = 1e-5
    family: str = "llama"


PRESETS = {
    "llama-1m": Preset(layers=4, hidden=128, heads=4, ffn=448),
    "llama-3m": Preset(layers=6, hidden=192, heads=6, ffn=576),
    "llama-12m": Preset(layers=6, hidden=384, heads=6, ffn=1152),
    "llama-28m": Preset(layers=12, hidden=384, heads=6, ffn=1024),
    "llama-110m": Preset(layers=12, hidden=768, heads=12, ffn=2048, tied_embedding=True),
    "llama-350m": Preset(layers=24, hidden=1024, heads=16, ffn=2816, tied_embedding=True),
    "llama-1b": Preset(16, 2048, heads=32, kv_heads=8, ffn=8192, tied_embedding=True, rope_theta=500_000.0),
    "llama-3b": Preset(28, 3072, heads=24, kv_heads=8, ffn=8192, tied_embedding=True, rope_theta=500_000.0),
    "llama-8b": Preset(layers=32, hidden=4096, heads=32, kv_heads=8, ffn=14336, rope_theta=500_000.0),
    "llama-13b": Preset(layers=40, hidden=5120, heads=40, ffn=13824),
    "llama-34b": Preset(layers=48, hidden=8192, heads=64, kv_heads=8, ffn=22016, rope_theta=1_000_000.0),
    "llama-70b": Preset(layers=80, hidden=8192, heads=64, kv_heads=8, ffn=28672, rope_theta=500_000.0),
}


def complete_shape(preset: str | None, said: Mapping[str, Any]) -> dict[str, Any]:
    """All sizes of a model but `vocab`: what was `said` laid over the preset and the defaults; None: not to be had."""
    shape = vars(PRESETS[preset]) if preset else dict.fromkeys(("family", "layers", "hidden", "heads", "ffn"))
    defaults = {
        "kv_heads": None,
        "tied_embedding": False,
        "rope_theta": 10_000.0,
        "norm_eps": 1e-5,
        "dropout": 0.0,
    }
    sizes = {**defaults, **shape, **{key: value for key, value in said.items() if value is not None}}
    return {**sizes, "kv_heads": sizes["kv_heads"] or sizes["heads"]}
