"""Pieces of tensors to and from files, in torch.distributed.checkpoint's (DCP) format.

DCP's own `save` and `load` send pickled plans between ranks and overwrite in place. Here each rank plans its
own pieces (they never overlap, so there is nothing to settle) and describes in JSON where it put them; rank 0
makes DCP's metadata from these descriptions. What lies on disk is a plain DCP checkpoint.
"""

from __future__ import annotations

import enum
import pickle
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter, _StorageInfo
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import (
    LoadPlan,
    ReadItem,
    SavePlan,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list
from torch.distributed.checkpoint.storage import WriteResult

from distperf.errors import CheckpointError
from distperf.parallel.pieces import OwnedTensor

State = Mapping[str, OwnedTensor]
Described = dict[str, Any]  # one piece as JSON: fqn, shape, dtype, offsets, sizes, and file, offset, length


def saved_bytes(state: State) -> int:
    """Bytes of the pieces that this rank saves."""
    return sum(tensor.numel() * tensor.element_size() for _, tensor in _pieces(_saving(state)))


def write_shard(folder: Path, rank: int, state: State) -> list[Described]:
    """Write the pieces that this rank saves into one file of `folder`, forced to disk, and describe them."""
    pieces = dict(_pieces(_saving(state)))
    items = [
        WriteItem(index, WriteItemType.SHARD, tensor_data=_write_data(state[index.fqn], index, tensor))
        for index, tensor in pieces.items()
    ]
    writer = FileSystemWriter(folder, sync_files=True)
    # DCP names files by a plan's place in the list of all ranks' plans.
    plan = writer.prepare_global_plan([SavePlan([])] * rank + [SavePlan(items)])[rank]
    results = writer.write_data(plan, _PieceWriter(pieces)).wait()
    stored = {result.index: result.storage_data for result in results}
    return [_describe(item, stored[item.index]) for item in items]


def write_metadata(folder: Path, described: Sequence[Sequence[Described]]) -> None:
    """Write DCP's metadata for what all ranks described; checks that the pieces fill every tensor exactly.

    Raises:
        ValueError: they overlap or leave a gap.
    """
    plans = [SavePlan([_write_item(piece) for piece in pieces]) for pieces in described]
    _, metadata = DefaultSavePlanner(flatten_state_dict=False).create_global_plan(plans)
    FileSystemWriter(folder, sync_files=True).finish(
        metadata, [[_write_result(piece) for piece in pieces] for pieces in described]
    )


def read_shards(folder: Path, state: State) -> None:
    """Fill this rank's pieces in place from whichever files hold them, however they were divided when saved.

    Raises:
        CheckpointError: a tensor is missing there or has another shape.
        OSError, RuntimeError: a file cannot be read.
    """
    reader = _SafeReader(folder)
    metadata = reader.read_metadata()
    items = [item for fqn, owned in state.items() for item in _read_items(folder, metadata, fqn, owned)]
    reader.set_up_storage_reader(metadata, is_coordinator=False)
    with torch.no_grad():
        reader.read_data(LoadPlan(items), _PieceReader(dict(_pieces(state)))).wait()


def stored_shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """Shape of every tensor that a checkpoint holds. Raises OSError, CheckpointError, pickle.UnpicklingError."""
    held = _SafeReader(folder).read_metadata().state_dict_metadata
    return {fqn: tuple(of.size) for fqn, of in held.items() if isinstance(of, TensorStorageMetadata)}


def _read_items(folder: Path, metadata: Metadata, fqn: str, owned: OwnedTensor) -> list[ReadItem]:
    saved = metadata.state_dict_metadata.get(fqn)
    if not isinstance(saved, TensorStorageMetadata):
        raise CheckpointError(f"{folder}: holds no {fqn}")
    if tuple(saved.size) != tuple(owned.shape):
        raise CheckpointError(
            f"{folder}: {fqn} is {tuple(saved.size)} there and {tuple(owned.shape)} in this model"
        )
    chunks = [
        ChunkStorageMetadata(torch.Size(piece.offsets), piece.tensor.size())
        for piece in owned.pieces
        if piece.tensor.numel()
    ]
    return create_read_items_for_chunk_list(fqn, saved, chunks)


def _saving(state: State) -> State:
    """Without what another rank saves, which has the same."""
    return {fqn: owned for fqn, owned in state.items() if owned.saves}


def _pieces(state: State) -> Iterator[tuple[MetadataIndex, Tensor]]:
    for fqn, owned in state.items():
        for piece in owned.pieces:
            if piece.tensor.numel():
                yield MetadataIndex(fqn, piece.offsets), piece.tensor


def _write_data(owned: OwnedTensor, index: MetadataIndex, tensor: Tensor) -> TensorWriteData:
    assert index.offset is not None
    chunk = ChunkStorageMetadata(index.offset, tensor.size())
    return TensorWriteData(chunk, TensorProperties(dtype=owned.dtype), torch.Size(owned.shape))


def _describe(item: WriteItem, stored: _StorageInfo) -> Described:
    data = item.tensor_data
    assert data is not None
    return {
        "fqn": item.index.fqn,
        "shape": list(data.size),
        "dtype": str(data.properties.dtype).removeprefix("torch."),
        "offsets": list(data.chunk.offsets),
        "sizes": list(data.chunk.sizes),
        "file": stored.relative_path,
        "offset": stored.offset,
        "length": stored.length,
    }


def _write_item(piece: Described) -> WriteItem:
    chunk = ChunkStorageMetadata(torch.Size(piece["offsets"]), torch.Size(piece["sizes"]))
    properties = TensorProperties(dtype=getattr(torch, piece["dtype"]))
    data = TensorWriteData(chunk, properties, torch.Size(piece["shape"]))
    return WriteItem(MetadataIndex(piece["fqn"], chunk.offsets), WriteItemType.SHARD, tensor_data=data)


def _write_result(piece: Described) -> WriteResult:
    stored = _StorageInfo(piece["file"], piece["offset"], piece["length"])
    return WriteResult(MetadataIndex(piece["fqn"], piece["offsets"]), piece["length"], stored)


class _PieceWriter(DefaultSavePlanner):
    """Gives DCP's writer the pieces by their place."""

    def __init__(self, pieces: dict[MetadataIndex, Tensor]) -> None:
        super().__init__(flatten_state_dict=False)
        self._pieces = pieces

    def lookup_object(self, index: MetadataIndex) -> Tensor:
        return self._pieces[index]


class _PieceReader(DefaultLoadPlanner):
    """Gives DCP's reader the pieces to fill by their place."""

    def __init__(self, pieces: dict[MetadataIndex, Tensor]) -> None:
        super().__init__(flatten_state_dict=False)
        self._pieces = pieces

    def lookup_tensor(self, index: MetadataIndex) -> Tensor:
        return self._pieces[index]


class _SafeReader(FileSystemReader):
    """DCP keeps its metadata as a pickle; this reads it without running code that a stranger's file names."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        with open(Path(self.path) / ".metadata", "rb") as file:
            metadata = _MetadataUnpickler(file).load()
        if not isinstance(metadata, Metadata):
            raise CheckpointError(f"{self.path}/.metadata: holds a {type(metadata).__name__}, no metadata")
        return metadata


def _enum_member(cls: type[enum.Enum], name: str) -> enum.Enum:
    """What getattr is in a pickle of some Python releases (3.11.2 for one): a member of an enumeration, no more."""
    if not (isinstance(cls, type) and issubclass(cls, enum.Enum)):
        raise pickle.UnpicklingError(
            f"checkpoint metadata takes {name!r} from {cls!r}, which no checkpoint needs"
        )
    return cls[name]


class _MetadataUnpickler(pickle.Unpickler):
    _ALLOWED = {
        "torch": {"Size", "float32", "float16", "bfloat16", "float64"},
        "torch.serialization": {"_get_layout"},
        "torch.distributed.checkpoint.filesystem": {"_StorageInfo"},
        "torch.distributed.checkpoint.metadata": {
            "ChunkStorageMetadata",
            "Metadata",
            "MetadataIndex",
            "StorageMeta",
            "TensorProperties",
            "TensorStorageMetadata",
            "_MEM_FORMAT_ENCODING",
        },
        "pathlib": {"PosixPath"},
        "pathlib._local": {"PosixPath"},
    }

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("builtins", "getattr"):
            return _enum_member
        if name not in self._ALLOWED.get(module, ()):
            raise pickle.UnpicklingError(
                f"checkpoint metadata names {module}.{name}, which no checkpoint needs"
            )
        return super().find_class(module, name)
