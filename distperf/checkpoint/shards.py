"""The pieces that a rank saves, as a file in torch.distributed.checkpoint's (DCP) format, and DCP's metadata.

DCP's own `save` sends pickled plans between ranks and overwrites in place, and hashes nothing. Here each rank writes
its own pieces (they never overlap, so there is nothing to settle) and describes in JSON where it put them; rank 0
makes index and DCP's metadata from these descriptions. What lies on disk is a plain DCP checkpoint: `dcp.load` of any
torch reads it.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
)
from torch.distributed.checkpoint.planner import SavePlan, TensorWriteData, WriteItem, WriteItemType
from torch.serialization import skip_data

from distperf.checkpoint.blocks import FileSum
from distperf.checkpoint.index import INDEX, Index, StoredPiece, StoredTensor, as_json, write_index
from distperf.checkpoint.writing import HashingWriter
from distperf.parallel.pieces import OwnedTensor

METADATA = ".metadata"
ENTRY_BYTES = 2048  # more than torch.save adds to a tensor's values

State = Mapping[str, OwnedTensor]


def saved_bytes(state: State) -> int:
    """Bytes of the file that this rank writes, at most."""
    return sum(
        p.tensor.numel() * p.tensor.element_size() + ENTRY_BYTES
        for owned in saving(state).values()
        for p in owned.pieces
    )


def saving(state: State) -> State:
    """Without what another rank saves, which has the same."""
    return {fqn: owned for fqn, owned in state.items() if owned.saves}


def write_shard(folder: Path, rank: int, state: State) -> dict[str, Any]:
    """Write the pieces that this rank saves into one file of `folder`, forced to disk; an empty one without pieces.

    Returns what there is to know of it, as JSON: `files` and `tensors`.

    Raises:
        OSError: it cannot be written.
    """
    name = f"__{rank}_0.distcp"
    tensors = {}
    with HashingWriter(folder / name) as file:
        for fqn, owned in saving(state).items():
            pieces = tuple(
                _write_entry(file, name, piece.offsets, piece.tensor)
                for piece in owned.pieces
                if piece.tensor.numel()
            )
            if pieces:
                dtype = str(owned.dtype).removeprefix("torch.")
                tensors[fqn] = StoredTensor(tuple(owned.shape), dtype, pieces)
        sums = file.finish()
    return {"files": {name: asdict(sums)}, "tensors": as_json(tensors)}


def write_indexes(folder: Path, index: Index) -> dict[str, FileSum]:
    """Write index.json and DCP's metadata, which checks that the pieces fill every tensor exactly.

    Raises:
        ValueError: they overlap or leave a gap.
        OSError: they cannot be written.
    """
    return {**write_own_index(folder, index), **_write(folder, METADATA, pickle.dumps(_dcp_metadata(index)))}


def write_own_index(folder: Path, index: Index) -> dict[str, FileSum]:
    """Write index.json alone, for a checkpoint that no other tool reads. Raises OSError."""
    return _write(folder, INDEX, write_index(index))


def _write(folder: Path, name: str, text: bytes) -> dict[str, FileSum]:
    with HashingWriter(folder / name) as file:
        file.write(text)
        return {name: file.finish()}


class _Entry:
    """The file as torch.save sees it while it writes one tensor without values, for which it leaves room."""

    def __init__(self, file: HashingWriter, values: memoryview) -> None:
        self._file, self._values = file, values
        self.start = 0

    def write(self, data: memoryview) -> int:
        return self._file.write(data)

    def flush(self) -> None:
        """Torch asks for it after each tensor; `finish` does it once."""

    def seek(self, count: int, whence: int) -> None:
        """Torch skips the room for the values: they are written here, from where they are, without a copy."""
        assert (count, whence) == (len(self._values), os.SEEK_CUR)
        self.start = self._file.size
        self._file.write(self._values)


def _write_entry(file: HashingWriter, name: str, offsets: tuple[int, ...], tensor: Tensor) -> StoredPiece:
    begin, values = file.size, _bytes_of(tensor)
    entry = _Entry(file, values)
    with skip_data():
        # torch's annotation wants all that a file can do; write and seek are what it uses.
        torch.save(torch.empty(tensor.shape, dtype=tensor.dtype), entry)  # type: ignore[arg-type]
    sizes = tuple(tensor.shape)
    return StoredPiece(tuple(offsets), sizes, name, entry.start, len(values), begin, file.size - begin)


def _bytes_of(tensor: Tensor) -> memoryview:
    """The values, row-major; a view where they are so in host memory already."""
    flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return flat.numpy().data


def _dcp_metadata(index: Index) -> Metadata:
    items = [item for fqn, tensor in index.items() for item in _write_items(fqn, tensor)]
    _, metadata = DefaultSavePlanner(flatten_state_dict=False).create_global_plan([SavePlan(items)])
    metadata.storage_data = {
        MetadataIndex(fqn, torch.Size(p.offsets)): _StorageInfo(p.file, p.entry, p.entry_bytes)
        for fqn, tensor in index.items()
        for p in tensor.pieces
    }
    return metadata


def _write_items(fqn: str, tensor: StoredTensor) -> Iterator[WriteItem]:
    properties = TensorProperties(dtype=getattr(torch, tensor.dtype))
    for piece in tensor.pieces:
        chunk = ChunkStorageMetadata(torch.Size(piece.offsets), torch.Size(piece.sizes))
        data = TensorWriteData(chunk, properties, torch.Size(tensor.shape))
        yield WriteItem(MetadataIndex(fqn, chunk.offsets), WriteItemType.SHARD, tensor_data=data)
