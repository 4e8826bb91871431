"""Where each tensor's pieces lie in a checkpoint's files: index.json. No torch.

DCP's own `.metadata` says the same for other tools, but as a pickle, and names the places of entries, not of values.
distperf reads the index alone: no pickle is ever loaded, and a rank reads the rows it needs of a piece, not the piece.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from distperf.errors import CheckpointCorrupt

INDEX = "index.json"

Shape = tuple[int, ...]


@dataclass(frozen=True)
class StoredPiece:
    """A rectangle of a tensor: its values are the bytes from `start` on of `file`, row-major, inside of DCP's entry."""

    offsets: Shape
    sizes: Shape
    file: str
    start: int
    bytes: int
    entry: int  # where DCP's entry begins
    entry_bytes: int


@dataclass(frozen=True)
class StoredTensor:
    """A tensor, and all pieces of it; `dtype` as torch names it: float32."""

    shape: Shape
    dtype: str
    pieces: tuple[StoredPiece, ...]


Index = Mapping[str, StoredTensor]


def merged(parts: Iterable[Mapping[str, Any]]) -> dict[str, StoredTensor]:
    """One index from those, as JSON, of what each rank wrote."""
    tensors: dict[str, StoredTensor] = {}
    for part in parts:
        for name, fields in part.items():
            found = _tensor(fields)
            known = tensors.get(name)
            pieces = found.pieces if known is None else known.pieces + found.pieces
            tensors[name] = StoredTensor(found.shape, found.dtype, pieces)
    return tensors


def as_json(index: Index) -> dict[str, Any]:
    """Of plain JSON values."""
    return {name: asdict(tensor) for name, tensor in index.items()}


def write_index(index: Index) -> bytes:
    """The text of index.json."""
    return json.dumps(as_json(index), sort_keys=True).encode()


def read_index(text: bytes) -> dict[str, StoredTensor]:
    """Inverse of `write_index`. Raises CheckpointCorrupt."""
    try:
        return {name: _tensor(fields) for name, fields in json.loads(text).items()}
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise CheckpointCorrupt(f"{INDEX}: not an index: {error}", INDEX) from error


def tensors_in(index: Index, file: str, start: int, stop: int) -> list[str]:
    """Names of the tensors that have values in bytes [start, stop) of a file."""
    return sorted(
        name
        for name, tensor in index.items()
        if any(p.file == file and p.start < stop and start < p.start + p.bytes for p in tensor.pieces)
    )


def _tensor(fields: Mapping[str, Any]) -> StoredTensor:
    pieces = tuple(
        StoredPiece(**{**piece, "offsets": tuple(piece["offsets"]), "sizes": tuple(piece["sizes"])})
        for piece in fields["pieces"]
    )
    return StoredTensor(tuple(fields["shape"]), fields["dtype"], pieces)
