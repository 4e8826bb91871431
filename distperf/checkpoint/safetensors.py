"""Writing safetensors files tensor by tensor, so that no more than one of them is in memory.

FILE   8 bytes: length of the header; the header: JSON, name -> dtype, shape, [begin, end) of its bytes; the bytes

Source: the format's specification, github.com/huggingface/safetensors.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from distperf.model.stored import INDEX, SINGLE

FILE_BYTES = 5_000_000_000  # what transformers cuts at; a tensor that is larger has a file of its own
NAMES = {torch.float32: "F32", torch.bfloat16: "BF16"}


@dataclass(frozen=True)
class Outgoing:
    """A tensor to be written."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def size_bytes(self) -> int:
        """Its length in the file."""
        return math.prod(self.shape) * self.dtype.itemsize


def plan_files(tensors: Sequence[Outgoing], limit: int = FILE_BYTES) -> dict[str, tuple[Outgoing, ...]]:
    """Which file has which tensors, in order: one file, or numbered ones of at most `limit` bytes. Pure."""
    groups: list[list[Outgoing]] = [[]]
    filled = 0
    for tensor in tensors:
        if groups[-1] and filled + tensor.size_bytes > limit:
            groups.append([])
            filled = 0
        groups[-1].append(tensor)
        filled += tensor.size_bytes
    if len(groups) == 1:
        return {SINGLE: tuple(groups[0])}
    return {
        f"model-{at:05}-of-{len(groups):05}.safetensors": tuple(group) for at, group in enumerate(groups, 1)
    }


def header(tensors: Iterable[Outgoing]) -> bytes:
    """What stands before the bytes of these tensors. Pure."""
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for tensor in tensors:
        begin, end = end, end + tensor.size_bytes
        entries[tensor.name] = {
            "dtype": NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end],
        }  # fmt: skip
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # bytes begin at a multiple of 8
    return len(text).to_bytes(8, "little") + text


def write_files(
    folder: Path, files: dict[str, tuple[Outgoing, ...]], read: Callable[[Outgoing], Tensor]
) -> None:
    """Write files and, where there are several, their index. `read` gives the tensors, in order. Raises OSError."""
    for name, tensors in files.items():
        with (folder / name).open("wb") as file:
            file.write(header(tensors))
            for tensor in tensors:
                values = read(tensor).to(tensor.dtype).contiguous()
                assert tuple(values.shape) == tensor.shape, (tensor, values.shape)
                file.write(values.flatten().view(torch.uint8).numpy().data)
            file.flush()
            os.fsync(file.fileno())
    if len(files) > 1:
        total = sum(tensor.size_bytes for tensors in files.values() for tensor in tensors)
        where = {tensor.name: name for name, tensors in files.items() for tensor in tensors}
        index = {"metadata": {"total_size": total}, "weight_map": where}
        (folder / INDEX).write_text(json.dumps(index, indent=1, sort_keys=True))
