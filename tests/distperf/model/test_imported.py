"""A Llama that starts from a folder of transformers."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from train_program import TINY

from distperf.checkpoint.safetensors import Outgoing, plan_files, write_files
from distperf.errors import ModelError
from distperf.model.blueprint import blueprint_of
from distperf.model.imported import differences
from distperf.model.llama import build_model
from distperf.model.published import llama_config, llama_weight


def write_folder(folder, model, config) -> dict[str, torch.Tensor]:
    """Weights of a Llama under their published names, each element one of its own."""
    shapes = {name: tuple(parameter.shape) for name, parameter in build_model(model).named_parameters()}
    values = {}
    for name, shape in shapes.items():
        (published,) = llama_weight(name, shape).names
        values[published] = torch.randn(shape)
    outgoing = [Outgoing(name, tuple(value.shape), value.dtype) for name, value in values.items()]
    write_files(folder, plan_files(outgoing), lambda tensor: values[tensor.name])
    (folder / "config.json").write_text(json.dumps(config))
    return values


def test_intervals_of_the_weights_there(tmp_path):
    """Any interval of any parameter, with the head and without."""
    values = write_folder(tmp_path, TINY, llama_config(TINY, 16, None))
    fill = blueprint_of(TINY, 1, init=str(tmp_path)).fill
    up, head = "layers.1.mlp.up_proj.weight", "lm_head.weight"
    assert torch.equal(fill(up, (64, 32), 100, 300), values[f"model.{up}"].flatten()[100:300])
    assert torch.equal(fill(head, (128, 32), 0, 5), values[head].flatten()[:5])


def test_other_models_are_refused_in_words(tmp_path):
    """Each size that differs, what a config leaves to defaults, and what this Llama does not have."""
    config = llama_config(TINY, 16, None)
    assert differences(TINY, config) == []
    plain = {
        key: value for key, value in config.items() if key not in ("tie_word_embeddings", "rope_parameters")
    }
    assert differences(TINY, plain) == []
    (said,) = differences(replace(TINY, rope_theta=5e5), config)
    assert said == "rope_theta 10000.0 there, rope_theta 500000.0 in the recipe"
    scaled = {
        **config,
        "rope_scaling": {"rope_type": "llama3"},
        "rope_parameters": None,
        "attention_bias": True,
    }
    assert [text.split()[0] for text in differences(TINY, scaled)] == ["rope_type", "attention_bias"]
    write_folder(tmp_path, TINY, {**config, "hidden_size": 48})
    with pytest.raises(
        ModelError, match=r"of another model than the recipe's: hidden_size 48 there, hidden 32"
    ):
        blueprint_of(TINY, 1, init=str(tmp_path))
    with pytest.raises(ModelError, match=r"config\.json is not there"):
        blueprint_of(TINY, 1, init=str(tmp_path / "none"))
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"holds no model\.safetensors"):
        blueprint_of(TINY, 1, init=str(tmp_path))
