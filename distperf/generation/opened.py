"""A model to generate with, from a checkpoint of any mesh or a folder of transformers, with its tokenizer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from distperf.checkpoint.find import find_checkpoint
from distperf.checkpoint.manifest import Manifest
from distperf.checkpoint.read import Stored
from distperf.data.store import Vocabulary
from distperf.errors import ModelError
from distperf.generation.decoders import CachedLlama, CachedTransformers, Decoder, Recomputing
from distperf.model.blueprint import Blueprint, blueprint_of
from distperf.model.imported import differences, imported_fill, llama_of
from distperf.model.init import Fill
from distperf.model.llama import Llama
from distperf.parallel.materialize import filled_parameters
from distperf.parallel.pieces import OwnedTensor, pieces_of
from distperf.parallel.tensor import apply_tensor_parallel
from distperf.recipe.runspec import FactorySpec, HfSpec, ModelFamily, ModelSpec


@dataclass(frozen=True)
class Opened:
    """A model that is still to be built, and what its ids mean. `published`: of a folder, not of a run."""

    family: ModelFamily
    blueprint: Blueprint
    precision: str
    tokenizer: str | None  # "byte" or a file; None: nobody knows
    published: bool

    def build(self, dtype: torch.dtype, device: torch.device, mesh: DeviceMesh | None) -> nn.Module:
        """The model with its weights, or this rank's part of it, divided over the ranks of `mesh`.

        Raises:
            DistperfError: it cannot be divided over them, or a weight cannot be read.

        Cost: peak extra one parameter (this rank's part of it) in fp32.
        """
        model = self.blueprint.build()
        if mesh is not None:
            plan = self.blueprint.tensor_plan
            if plan is None:
                raise ModelError("--nproc: this model declares no tensor plan; generate with one process")
            apply_tensor_parallel(
                model, mesh, replace(plan, sequence=False)
            )  # one position cannot be divided
        filled_parameters(model, self.blueprint.fill, dtype, device)
        return model.eval()


def open_model(path: Path) -> Opened:
    """What `path` is: a folder with a config.json, a checkpoint, or a folder of checkpoints, whose newest is taken.

    Raises:
        DistperfError: it is none of these, or its model cannot be had.
    """
    if (path / "config.json").exists():
        return _open_folder(path)
    found = find_checkpoint(path)
    assert found.manifest is not None, "complete checkpoints have one"
    manifest = found.manifest
    family = _family(manifest)
    blueprint = replace(blueprint_of(family, 0), fill=checkpoint_fill(Stored(found.path, manifest)))
    vocabulary = manifest.data["vocabulary"]
    tokenizer = None if vocabulary is None else Vocabulary(**vocabulary).tokenizer
    return Opened(family, blueprint, manifest.precision, tokenizer, published=False)


def _family(manifest: Manifest) -> ModelFamily:
    if manifest.model["family"] == "own":
        raise ModelError(
            "the model of this checkpoint is made by a script (distperf.initialize), which alone knows how; get "
            "its weights out with `distperf ckpt export`"
        )
    kinds: dict[str, Any] = {"llama": ModelSpec, "hf": HfSpec, "factory": FactorySpec}
    family: ModelFamily = kinds[manifest.model["family"]](**manifest.model)
    return family


def _open_folder(path: Path) -> Opened:
    """Llamas are distperf's own, so that they can be divided and need no transformers; all others are the library's."""
    try:
        config = json.loads((path / "config.json").read_bytes())
        precision = "fp32" if config.get("dtype", config.get("torch_dtype")) == "float32" else "bf16"
        llama = llama_of(config)
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise ModelError(f"{path / 'config.json'}: is no config.json of transformers: {error!r}") from error
    if not any(path.glob("*.safetensors")):
        raise ModelError(f"{path}: holds no safetensors, so nothing to generate with")
    family: ModelFamily = HfSpec("hf", str(path))
    if llama is not None and not differences(llama, config):
        family = llama
        blueprint = replace(blueprint_of(llama, 0), fill=imported_fill(llama, path, str(path)))
    else:
        blueprint = blueprint_of(family, 0)
    tokenizer = path / "tokenizer.json"
    return Opened(
        family, blueprint, precision, str(tokenizer) if tokenizer.exists() else None, published=True
    )


def checkpoint_fill(checkpoint: Stored) -> Fill:
    """The values that a checkpoint holds of a model, by intervals."""

    def fill(fqn: str, shape: Sequence[int], start: int, stop: int) -> Tensor:
        values, whole = torch.empty(stop - start), tuple(shape)
        owned = OwnedTensor(whole, torch.float32, pieces_of(values, whole, start))
        checkpoint.fill({f"model.{fqn}": owned})
        return values

    return fill


def decoder_for(model: nn.Module, family: ModelFamily, padding: Tensor, capacity: int) -> Decoder:
    """The model ready for prompts padded so (B,), and `capacity` positions in all. Raises ModelError."""
    if isinstance(model, Llama):
        return CachedLlama(model, padding, capacity)
    if isinstance(family, HfSpec):
        return CachedTransformers(model, padding, capacity)
    return Recomputing(model, padding)
