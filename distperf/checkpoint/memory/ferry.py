"""Files from one node's memory to another's, over a process group of their own, without a copy on the way."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from distperf.checkpoint.agree import agreed
from distperf.checkpoint.memory.route import Transfer

MESSAGE_BYTES = 64 << 20
COMING = ".coming"  # ends the name of a file that is not whole yet


def carry(what: str, transfers: Sequence[Transfer], folder: Path, group: dist.ProcessGroup) -> None:
    """Bring every file into `folder`, another one on each node. Collective: all ranks have the same `transfers`.

    A file has its name only when it is whole.

    Raises:
        CheckpointError: on every rank: there is no room for one, or it cannot be read.

    Cost: each rank sends and receives the bytes of its transfers; extra memory: none but the files.
    """
    rank = dist.get_rank()
    coming = [each for each in transfers if each.target == rank]
    going = [each for each in transfers if each.source == rank]
    files: dict[str, list[Tensor]] = {}

    def open_all() -> None:
        """What can fail on one rank alone comes before anybody waits for anybody."""
        files["there"] = [_room(folder / (each.file + COMING), each.bytes) for each in coming]
        files["here"] = [_mapped(folder / each.file, each.bytes) for each in going]

    agreed(what, open_all, group)
    # Two threads, each in the order that all ranks have: the first transfer of all that is not done waits for nobody.
    with ThreadPoolExecutor(1) as sender:
        sent = sender.submit(_send, going, files["here"], group)
        for each, file in zip(coming, files["there"], strict=True):
            for part in _messages(file):
                dist.recv(part, each.source, group)
            (folder / (each.file + COMING)).rename(folder / each.file)
        sent.result()


def _send(going: Sequence[Transfer], files: Sequence[Tensor], group: dist.ProcessGroup) -> None:
    for each, file in zip(going, files, strict=True):
        for part in _messages(file):
            dist.send(part, each.target, group)


def _messages(file: Tensor) -> tuple[Tensor, ...]:
    return torch.split(file, MESSAGE_BYTES) if len(file) else ()


def _room(path: Path, size: int) -> Tensor:
    """A new file of this size, all of which is there: what is only mapped would end the process when memory is full."""
    with open(path, "wb") as file:
        if size:
            os.posix_fallocate(file.fileno(), 0, size)
    return _mapped(path, size)


def _mapped(path: Path, size: int) -> Tensor:
    """(size,) uint8: the bytes of a file, in place. Raises OSError, ValueError: torch would make up what is missing."""
    if (found := path.stat().st_size) != size:
        raise ValueError(f"{path} has {found} bytes, and had {size}")
    if not size:
        return torch.empty(0, dtype=torch.uint8)
    return torch.from_file(str(path), shared=True, size=size, dtype=torch.uint8)
