"""A model as transformers and what reads its folders know it: config.json, and the names of weights. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from distperf.model.stored import FUSED, RENAMED
from distperf.recipe.runspec import ModelSpec

# Families whose files name experts as Mixtral's do; all others name them as Qwen's.
MIXTRAL_NAMES = ("mixtral", "minimax", "minimax_m2")


@dataclass(frozen=True)
class Published:
    """A parameter of shape `whole` as it is written: tensors of one shape whose concatenation it is, row-major."""

    fqn: str
    whole: tuple[int, ...]
    names: tuple[str, ...]
    shape: tuple[int, ...]

    @property
    def numel(self) -> int:
        """Elements of each of the tensors."""
        return math.prod(self.shape)


def llama_config(model: ModelSpec, positions: int, eod: int | None) -> dict[str, Any]:
    """config.json of a Llama that was trained on sequences of so many positions; `eod`: the id that ends a text."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": model.vocab,
        "hidden_size": model.hidden,
        "intermediate_size": model.ffn,
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.kv_heads,
        "head_dim": model.hidden // model.heads,
        "hidden_act": "silu",
        "rms_norm_eps": model.norm_eps,
        "rope_theta": model.rope_theta,  # read by all but the newest tools, which read the next
        "rope_parameters": {"rope_type": "default", "rope_theta": model.rope_theta},
        "max_position_embeddings": positions,
        "tie_word_embeddings": model.tied_embedding,
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": eod,
        "eos_token_id": eod,
        "pad_token_id": None,
        "use_cache": True,
    }


def as_it_is(fqn: str, shape: tuple[int, ...]) -> Published:
    """A parameter under its own name."""
    return Published(fqn, shape, (fqn,), shape)


def llama_weight(fqn: str, shape: tuple[int, ...]) -> Published:
    """A Llama's parameter: all but the head lie inside `model`."""
    name = fqn if fqn.startswith("lm_head.") else f"model.{fqn}"
    return Published(fqn, shape, (name,), shape)


def transformers_weight(fqn: str, shape: tuple[int, ...], *, model_type: str) -> Published:
    """A parameter of a model of transformers, which keeps a layer's experts together and publishes each by itself."""
    mixtral = model_type in MIXTRAL_NAMES
    for ending, layouts in FUSED.items():
        if fqn.endswith(ending) and len(shape) == 3:
            layout, base = layouts[0 if mixtral else 1], fqn.removesuffix(ending)
            names = tuple(base + each.format(expert) for expert in range(shape[0]) for each in layout)
            return Published(fqn, shape, names, (shape[1] // len(layout), shape[2]))
    name = fqn
    if mixtral:
        for ending, other in RENAMED.items():
            name = name.removesuffix(ending) + other if name.endswith(ending) else name
    return Published(fqn, shape, (name,), shape)


def renamed_config(config: Mapping[str, Any], dtype: str) -> dict[str, Any]:
    """A config.json that says which dtype the weights beside it have, under its old and its new key."""
    return {**config, "dtype": dtype, "torch_dtype": dtype}
