"""Checkpoints that leave: what transformers makes of an export is what distperf trained."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from train_program import TINY, make_spec, train

from distperf.checkpoint.manifest import read_manifest
from distperf.checkpoint.read import Stored
from distperf.errors import CheckpointError
from distperf.export import Exported, export, main
from distperf.model.blueprint import blueprint_of
from distperf.parallel.pieces import OwnedTensor, Piece
from distperf.recipe.runspec import CheckpointSpec, FactorySpec, HfSpec, ModelFamily

transformers = pytest.importorskip("transformers")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

IDS = torch.tensor([[1, 5, 100, 7, 3, 3, 90, 2], [9, 8, 7, 6, 5, 4, 3, 127]])


def trained(folder: Path, model: ModelFamily = TINY, **layout) -> Path:
    """The checkpoint of two steps."""
    checkpoint = CheckpointSpec(every_steps=0, save_last=True, keep=1, dir=str(folder / "checkpoints"))
    train(make_spec(folder, steps=2, model=model, checkpoint=checkpoint, **layout))
    return Path(checkpoint.dir) / "step-00000002"


def own_logits(checkpoint: Path, model: ModelFamily) -> torch.Tensor:
    """Of distperf's own model, with the checkpoint's values."""
    module = blueprint_of(model, 1).build()
    for name, parameter in list(module.named_parameters()):
        values = torch.empty(parameter.shape)
        piece = Piece(tuple(0 for _ in parameter.shape), values)
        owned = OwnedTensor(tuple(parameter.shape), values.dtype, (piece,))
        Stored(checkpoint, read_manifest(checkpoint)).fill({f"model.{name}": owned})
        owner, _, last = name.rpartition(".")
        setattr(module.get_submodule(owner), last, torch.nn.Parameter(values))
    for tied, name in getattr(module, "all_tied_weights_keys", {}).items():
        owner, _, last = tied.rpartition(".")
        setattr(module.get_submodule(owner), last, module.get_parameter(name))
    with torch.no_grad():
        return module.eval()(IDS)


def loaded_logits(folder: Path) -> torch.Tensor:
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, local_files_only=True)
    with torch.no_grad():
        return model.eval()(IDS).logits


def exported(checkpoint: Path, out: Path, **options) -> Exported:
    done = export(checkpoint, out, **options)
    assert done.checkpoint == checkpoint
    assert not list(out.parent.glob(".*partial*"))
    return done


def test_a_llama_divided_over_ranks_leaves_whole(tmp_path):
    """Grouped queries, ZeRO-3 and tensor parallelism: transformers computes the same logits from the merged weights."""
    checkpoint = trained(tmp_path, world=4, zero=3, axes={"tp": 2})
    exported(checkpoint, tmp_path / "out")
    torch.testing.assert_close(loaded_logits(tmp_path / "out"), own_logits(checkpoint, TINY))
    fresh = tmp_path / "fresh"  # and training starts from them
    begun = train(make_spec(fresh, steps=1, init=str(tmp_path / "out"))).losses()[1]
    assert begun < train(make_spec(fresh, steps=1)).losses()[1]
    exported(checkpoint, tmp_path / "half", dtype="bf16")
    assert (tmp_path / "half/model.safetensors").stat().st_size < 0.6 * (
        tmp_path / "out/model.safetensors"
    ).stat().st_size
    half = loaded_logits(tmp_path / "half")
    assert half.dtype == torch.bfloat16
    torch.testing.assert_close(half.float(), own_logits(checkpoint, TINY), rtol=0.1, atol=0.02)


def test_tied_weights_leave_once_g14(tmp_path):
    """G14: a tied embedding that two pipeline stages hold is one tensor of the export, and tied again when loaded."""
    tied = dataclasses.replace(TINY, tied_embedding=True)
    parallel = {"world": 2, "axes": {"pp": 2}, "accumulation": 2}
    spec = make_spec(tmp_path, **parallel).parallel
    checkpoint = trained(tmp_path, tied, **parallel, parallel=dataclasses.replace(spec, pp_layers=(1, 1)))
    done = exported(checkpoint, tmp_path / "out")
    assert done.weights == 2 * 9 + 2
    torch.testing.assert_close(loaded_logits(tmp_path / "out"), own_logits(checkpoint, tied))


@pytest.mark.parametrize("kind", ["qwen2", "mixtral"])
def test_a_model_of_transformers_leaves_as_it_came(tmp_path, kind):
    """Names, shapes and config are transformers' own: ties, biases, experts one by one."""
    config = {
        "model_type": kind, "vocab_size": 128, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": kind == "qwen2",
        **({"num_local_experts": 4, "num_experts_per_tok": 2} if kind == "mixtral" else {}),
    }  # fmt: skip
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text("{}")
    model = HfSpec("hf", str(folder))
    checkpoint = trained(tmp_path, model, world=1, zero=0)
    exported(checkpoint, tmp_path / "out")
    torch.testing.assert_close(loaded_logits(tmp_path / "out"), own_logits(checkpoint, model))
    assert (tmp_path / "out/tokenizer.json").read_text() == "{}"
    published = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out", local_files_only=True)
    published.save_pretrained(tmp_path / "theirs")
    assert names(tmp_path / "theirs") == names(tmp_path / "out")


def names(folder: Path) -> set[str]:
    from safetensors import safe_open

    with safe_open(folder / "model.safetensors", "pt") as file:
        return set(file.keys())


def test_a_model_of_ones_own_leaves_as_tensors_alone(tmp_path, capsys):
    """No architecture of transformers, no tokenizer: weights under their own names, and the command says what lacks."""
    model = FactorySpec("factory", "own_models:build", {"vocab": 128, "dropout": 0.0}, 128)
    checkpoint = trained(tmp_path, model)
    assert main([str(tmp_path), str(tmp_path / "out")]) == 0
    said = capsys.readouterr().err
    assert "no config.json: a model of your own is no architecture of transformers" in said
    assert "no tokenizer: the run's data came without one" in said
    assert f"{checkpoint}: " in said
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["model.safetensors"]
    assert names(tmp_path / "out") == set(blueprint_of(model, 1).names)
    with pytest.raises(CheckpointError, match="is not empty; name a new folder or remove this one"):
        export(checkpoint, tmp_path / "out")
    assert main([str(tmp_path / "nothing"), str(tmp_path / "new")]) == 1
    assert "no complete checkpoint" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()
