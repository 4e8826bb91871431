"""Weights in safetensors files, read by intervals: no rank ever holds more of a parameter than it asks for.

A stored tensor need not be a parameter of the model: transformers keeps the experts of a layer as one parameter, and
files hold a matrix for each. So a parameter is the concatenation of stored tensors, all of them row-major.
"""

from __future__ import annotations

import importlib
import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from distperf.errors import ModelError
from distperf.model.init import Fill

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"

# Ending of a parameter -> endings of what is stored, for each expert; first Mixtral's names, then Qwen's.
FUSED = {
    ".mlp.experts.gate_up_proj": (
        (".block_sparse_moe.experts.{}.w1.weight", ".block_sparse_moe.experts.{}.w3.weight"),
        (".mlp.experts.{}.gate_proj.weight", ".mlp.experts.{}.up_proj.weight"),
    ),
    ".mlp.experts.down_proj": (
        (".block_sparse_moe.experts.{}.w2.weight",),
        (".mlp.experts.{}.down_proj.weight",),
    ),
}
RENAMED = {".mlp.gate.weight": ".block_sparse_moe.gate.weight"}


@dataclass(frozen=True)
class StoredTensor:
    """Where a tensor is, and its shape."""

    file: Path
    name: str
    shape: tuple[int, ...]

    @property
    def numel(self) -> int:
        """How many elements."""
        return math.prod(self.shape)


def stored_fill(
    folder: Path, shapes: Mapping[str, tuple[int, ...]], aliases: Mapping[str, str]
) -> Fill | None:
    """The parameters of these names and shapes, as the folder's safetensors have them; None where there are none.

    `aliases`: other names of parameters, or beginnings of names, that files may use.

    Raises:
        ModelError: a file cannot be read, or a parameter is not there or has another shape.
    """
    stored = _stored(folder)
    if not stored:
        return None
    parts = {}
    for fqn, shape in shapes.items():
        names = sources(fqn, shape, stored.keys(), aliases)
        if not names:
            raise ModelError(f"{folder}: its safetensors hold no {fqn} {shape}, which config.json asks for")
        parts[fqn] = [stored[name] for name in names]
        found = sum(part.numel for part in parts[fqn])
        if found != math.prod(shape) or (len(names) == 1 and parts[fqn][0].shape != shape):
            shown = " and ".join(f"{part.name} {part.shape}" for part in parts[fqn][:2])
            raise ModelError(f"{folder}: {fqn} is {shape} by config.json, and {shown} in the safetensors")
    handles: dict[Path, Any] = {}

    def fill(fqn: str, shape: Sequence[int], start: int, stop: int) -> Tensor:
        return _read(parts[fqn], start, stop, handles)

    return fill


def sources(
    fqn: str, shape: tuple[int, ...], stored: Collection[str], aliases: Mapping[str, str]
) -> list[str]:
    """Names of the stored tensors that make up a parameter, in order; empty where they are not all there. Pure."""
    for name in (fqn, *(_alias(fqn, own, other) for own, other in aliases.items() if fqn.startswith(own))):
        if name in stored:
            return [name]
        for ending, other in RENAMED.items():
            if name.endswith(ending) and name.removesuffix(ending) + other in stored:
                return [name.removesuffix(ending) + other]
        for ending, layouts in FUSED.items():
            for layout in layouts if name.endswith(ending) else ():
                base = name.removesuffix(ending)
                names = [base + each.format(expert) for expert in range(shape[0]) for each in layout]
                if all(each in stored for each in names):
                    return names
    return []


def _alias(fqn: str, own: str, other: str) -> str:
    return other + fqn.removeprefix(own)


def _stored(folder: Path) -> dict[str, StoredTensor]:
    """Everything that the folder's files hold, by name, from their headers."""
    try:
        files = [SINGLE]
        if (folder / INDEX).exists():
            files = sorted(set(json.loads((folder / INDEX).read_bytes())["weight_map"].values()))
        elif not (folder / SINGLE).exists():
            _refuse_pickles(folder)
            return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"{folder / INDEX}: no index of safetensors: {error}") from error
    return {tensor.name: tensor for file in files for tensor in _header(folder / file)}


def _refuse_pickles(folder: Path) -> None:
    """Weights that nobody reads must not look like weights that were read."""
    pickles = sorted(path.name for path in folder.glob("pytorch_model*.bin"))
    if pickles:
        raise ModelError(
            f"{folder}: has {pickles[0]}, a pickle, which may run code when it is read. Convert it to safetensors, or "
            "take it away to start from random weights"
        )


def _header(file: Path) -> list[StoredTensor]:
    """What a file holds: 8 bytes with the length of a JSON document, then that (the format's specification)."""
    try:
        with file.open("rb") as stream:
            header = json.loads(stream.read(int.from_bytes(stream.read(8), "little")))
        return [
            StoredTensor(file, name, tuple(entry["shape"]))
            for name, entry in header.items()
            if name != "__metadata__"
        ]
    except (OSError, ValueError, KeyError, TypeError, MemoryError, OverflowError) as error:
        raise ModelError(f"{file}: cannot be read as safetensors: {error}") from error


def _read(parts: Sequence[StoredTensor], start: int, stop: int, handles: dict[Path, Any]) -> Tensor:
    """Elements [start, stop) of the concatenation of flattened tensors, fp32."""
    values, first = torch.empty(stop - start), 0
    for part in parts:
        low, high = max(start, first), min(stop, first + part.numel)
        if low < high:
            values[low - start : high - start] = _elements(part, low - first, high - first, handles)
        first += part.numel
    return values


def _elements(part: StoredTensor, start: int, stop: int, handles: dict[Path, Any]) -> Tensor:
    row = math.prod(part.shape[1:])
    top, bottom = start // row, -(-stop // row)
    safetensors = importlib.import_module("safetensors")
    try:
        handle = handles.setdefault(part.file, None) or safetensors.safe_open(part.file, "pt")
        handles[part.file] = handle
        rows: Tensor = handle.get_slice(part.name)[top:bottom] if part.shape else handle.get_tensor(part.name)
    except (OSError, safetensors.SafetensorError) as error:
        raise ModelError(f"{part.file}: cannot read {part.name}: {error}") from error
    return rows.flatten()[start - top * row : stop - top * row]
