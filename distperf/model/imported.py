"""A Llama that starts from the weights in a folder of transformers, an export for one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from distperf.errors import ModelError
from distperf.model.init import Fill
from distperf.model.llama import build_model
from distperf.model.published import llama_config
from distperf.model.stored import stored_fill
from distperf.recipe.runspec import ModelSpec

COMPARED = {
    "vocab_size": "vocab",
    "hidden_size": "hidden",
    "intermediate_size": "ffn",
    "num_hidden_layers": "layers",
    "num_attention_heads": "heads",
    "num_key_value_heads": "kv_heads",
    "tie_word_embeddings": "tied_embedding",
    "rms_norm_eps": "norm_eps",
    "rope_theta": "rope_theta",
}


def imported_fill(model: ModelSpec, folder: Path, where: str) -> Fill:
    """The folder's weights as values of the model, read by intervals: a rank holds what it asks for.

    `where`: what an error begins with.

    Raises:
        ModelError: the folder holds no weights, or those of another model.
    """
    path = folder / "config.json"
    try:
        config = json.loads(path.read_bytes())
        differing = differences(model, config)
    except FileNotFoundError:
        raise ModelError(
            f"{where}: {path.absolute()} is not there (a path is relative to launch.workdir)"
        ) from None
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise ModelError(f"{where}: {path} is no config.json of transformers: {error!r}") from error
    if differing:
        raise ModelError(f"{where}: is of another model than the recipe's: {', '.join(differing)}")
    shapes = {name: tuple(parameter.shape) for name, parameter in build_model(model).named_parameters()}
    fill = stored_fill(folder, shapes, {"": "model."})
    if fill is None:
        raise ModelError(f"{where}: holds no model.safetensors and no index of several")
    return fill


def llama_of(config: Mapping[str, Any]) -> ModelSpec | None:
    """The Llama that a config.json tells of; None where it lacks a size. `differences` says whether it is one. Pure."""
    try:
        hidden, heads = int(config["hidden_size"]), int(config["num_attention_heads"])
        return ModelSpec(
            family="llama",
            layers=int(config["num_hidden_layers"]),
            hidden=hidden,
            heads=heads,
            kv_heads=int(config.get("num_key_value_heads") or heads),
            ffn=int(config["intermediate_size"]),
            vocab=int(config["vocab_size"]),
            tied_embedding=bool(config.get("tie_word_embeddings", False)),
            rope_theta=float(_rope(config)["rope_theta"]),
            norm_eps=float(config.get("rms_norm_eps", 1e-6)),
            dropout=0.0,
        )
    except KeyError:
        return None


def _rope(config: Mapping[str, Any]) -> dict[str, Any]:
    """What is said of rotary angles, under the newer key or the older ones."""
    said = config.get("rope_parameters") or config.get("rope_scaling") or {}
    return {
        "rope_theta": config.get("rope_theta") or 10_000.0,
        "rope_type": said.get("type", "default"),
        **said,
    }


def differences(model: ModelSpec, config: Mapping[str, Any]) -> list[str]:
    """What a config.json says that the model is not, in words. Pure."""
    rope = _rope(config)
    said = {
        "num_key_value_heads": config.get("num_attention_heads"),
        "tie_word_embeddings": False,
        "rms_norm_eps": 1e-6,
        **{key: value for key, value in config.items() if value is not None},
        "rope_theta": rope["rope_theta"],
    }
    own = llama_config(model, positions=0, eod=None)
    found = [
        f"{key} {said.get(key)} there, {name} {own[key]} in the recipe"
        for key, name in COMPARED.items()
        if said.get(key) != own[key]
    ]
    for key, value, allowed in (
        ("model_type", said.get("model_type"), "llama"),
        ("rope_type", rope["rope_type"], "default"),
        ("attention_bias", said.get("attention_bias", False), False),
        ("mlp_bias", said.get("mlp_bias", False), False),
        ("head_dim", said.get("head_dim", own["head_dim"]), own["head_dim"]),
    ):
        if value != allowed:
            found.append(f"{key} {value}, where only {allowed} is known (model.hf takes any)")
    return found
