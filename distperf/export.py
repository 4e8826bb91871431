"""`python -m distperf.export`: a checkpoint as a folder that transformers, and what reads its folders, loads."""

from __future__ import annotations

import argparse
import json
import os
import secrets
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from distperf.checkpoint.find import find_checkpoint
from distperf.checkpoint.manifest import Manifest
from distperf.checkpoint.read import Stored
from distperf.checkpoint.safetensors import Outgoing, plan_files, write_files
from distperf.checkpoint.save import sync_folder
from distperf.contract import EXIT_INTERRUPTED
from distperf.data.store import Vocabulary
from distperf.data.tokenizer_files import write_tokenizer
from distperf.errors import CheckpointError, DataError, DistperfError
from distperf.model.published import (
    Published,
    as_it_is,
    llama_config,
    llama_weight,
    renamed_config,
    transformers_weight,
)
from distperf.parallel.pieces import OwnedTensor, Piece
from distperf.recipe.runspec import ModelSpec

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
# What a folder of transformers has beside its weights, and a model keeps.
KEPT = (
    "tokenizer*",
    "special_tokens_map.json",
    "vocab.*",
    "merges.txt",
    "generation_config.json",
    "chat_template*",
)


@dataclass(frozen=True)
class Exported:
    """What `export` did. `notes`: what the folder lacks, and why."""

    checkpoint: Path
    weights: int
    files: int
    size_bytes: int
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Form:
    """How a model leaves: what its parameters become, its config.json, files that are copied."""

    weight: Callable[[str, tuple[int, ...]], Published]
    config: dict[str, Any] | None
    files: tuple[Path, ...] = ()


def export(path: Path, out: Path, dtype: str | None = None, hf: Path | None = None) -> Exported:
    """Write the model of a checkpoint into a new folder, complete or absent.

    Args:
        path: a checkpoint, or the folder of a run or of checkpoints, whose newest is taken
        out: the folder to make
        dtype: of the weights, a key of DTYPES; None: as forward passes of the run had them
        hf: where the config.json of a model of transformers is now; None: where the run had it

    Raises:
        DistperfError: there is no such checkpoint, it cannot be read, or `out` cannot be written.

    Cost: one parameter in memory at a time.
    """
    found = find_checkpoint(path)
    assert found.manifest is not None, "complete checkpoints have one"
    form = _form(found.manifest, hf)
    named = dtype or ("fp32" if found.manifest.precision == "fp32" else "bf16")
    beside = out.parent / f".{out.name}.partial-{os.getpid()}-{secrets.token_hex(4)}"
    try:
        stored = Stored(found.path, found.manifest)
        weights = _weights(stored, form)
        if out.exists() and any(out.iterdir()):
            raise CheckpointError(f"{out} is not empty; name a new folder or remove this one")
        beside.mkdir(parents=True)
        notes = _write_beside_weights(beside, form, found.manifest, named)
        files, size = _write_weights(stored, weights, DTYPES[named], beside)
        sync_folder(beside)
        beside.rename(out)
    except OSError as error:
        raise CheckpointError(f"cannot export {found.path} to {out}: {error}") from error
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return Exported(found.path, sum(len(weight.names) for weight in weights), files, size, notes)


def _form(manifest: Manifest, hf: Path | None) -> Form:
    model = manifest.model
    if model["family"] in ("factory", "own"):
        return Form(as_it_is, None)
    if model["family"] == "hf":
        return _transformers_form(hf or Path(model["path"]))
    spec, vocabulary = ModelSpec(**model), _vocabulary(manifest)
    eod = None if vocabulary is None else vocabulary.eod
    return Form(llama_weight, llama_config(spec, manifest.data["seq_len"], eod))


def _transformers_form(folder: Path) -> Form:
    path = folder / "config.json"
    try:
        config = json.loads(path.read_bytes())
        weight = partial(transformers_weight, model_type=config["model_type"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"{path}, which the run had its model from, cannot be read: {error!r}. Name its folder with --hf"
        ) from error
    files = {file for pattern in KEPT for file in folder.glob(pattern)}
    return Form(weight, config, tuple(sorted(file for file in files if file.is_file())))


def _vocabulary(manifest: Manifest) -> Vocabulary | None:
    said = manifest.data["vocabulary"]
    return None if said is None else Vocabulary(**said)


def _weights(checkpoint: Stored, form: Form) -> list[Published]:
    """The model's parameters, in the order of their names in the checkpoint."""
    prefix = "model."
    return [
        form.weight(fqn.removeprefix(prefix), tensor.shape)
        for fqn, tensor in checkpoint.index.items()
        if fqn.startswith(prefix)
    ]


def _write_beside_weights(folder: Path, form: Form, manifest: Manifest, dtype: str) -> tuple[str, ...]:
    """config.json and the tokenizer; returns what is lacking."""
    notes = []
    if form.config is None:
        notes.append("no config.json: a model of your own is no architecture of transformers")
    else:
        config = renamed_config(form.config, str(DTYPES[dtype]).removeprefix("torch."))
        (folder / "config.json").write_text(json.dumps(config, indent=2))
    for file in form.files:
        shutil.copy(file, folder)
    vocabulary = _vocabulary(manifest)
    if not any(file.name.startswith("tokenizer") for file in form.files):
        try:
            if vocabulary is None:
                raise DataError("the run's data came without one")
            write_tokenizer(folder, vocabulary)
        except DataError as error:
            notes.append(f"no tokenizer: {error}")
    return tuple(notes)


def _write_weights(
    checkpoint: Stored, weights: Sequence[Published], dtype: torch.dtype, folder: Path
) -> tuple[int, int]:
    """Files and bytes written."""
    tensors = [Outgoing(name, weight.shape, dtype) for weight in weights for name in weight.names]
    size, free = sum(tensor.size_bytes for tensor in tensors), shutil.disk_usage(folder).free
    if size > free:
        raise CheckpointError(f"{folder.parent} has {free:,} bytes free, and the weights take {size:,}")
    files = plan_files(tensors)
    write_files(folder, files, _Reader(checkpoint, weights))
    return len(files), size


class _Reader:
    """Tensors of a checkpoint by the names they leave with; one parameter is held at a time."""

    def __init__(self, checkpoint: Stored, weights: Sequence[Published]) -> None:
        self._checkpoint = checkpoint
        self._places = {name: (weight, at) for weight in weights for at, name in enumerate(weight.names)}
        self._fqn, self._values = "", torch.empty(0)

    def __call__(self, tensor: Outgoing) -> Tensor:
        weight, at = self._places[tensor.name]
        if self._fqn != weight.fqn:
            self._values = torch.empty(0)  # let go of the last one before there is the next
            self._fqn, self._values = weight.fqn, self._read(weight).flatten()
        return self._values[at * weight.numel :][: weight.numel].view(weight.shape)

    def _read(self, weight: Published) -> Tensor:
        """The parameter, fp32."""
        values = torch.empty(weight.whole)
        piece = Piece(tuple(0 for _ in weight.whole), values)
        owned = OwnedTensor(weight.whole, torch.float32, (piece,))
        self._checkpoint.fill({f"model.{weight.fqn}": owned})
        return values


def main(argv: Sequence[str] | None = None) -> int:
    """0 done, 1 it cannot be exported, 2 bad usage, 130 Ctrl-C."""
    parser = argparse.ArgumentParser("distperf ckpt export", description="A checkpoint as safetensors.")
    parser.add_argument("path", type=Path, metavar="CKPT")
    parser.add_argument("out", type=Path, metavar="OUT")
    parser.add_argument("--dtype", choices=tuple(DTYPES))
    parser.add_argument("--hf", type=Path, metavar="DIR")
    args = parser.parse_args(argv)
    try:
        done = export(args.path, args.out, args.dtype, args.hf)
    except DistperfError as error:
        print(f"distperf: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    for note in done.notes:
        print(f"distperf: {note}", file=sys.stderr)
    files = f"{done.files} file" + "s" * (done.files > 1)
    print(
        f"{done.checkpoint}: {done.weights} tensors, {done.size_bytes:,} bytes in {files} to {args.out}",
        file=sys.stderr,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
