"""From what a recipe says of offload to where every state rests. Collective where there are files."""

from __future__ import annotations

import socket
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from distperf.errors import OffloadError
from distperf.offload import folder
from distperf.offload.disk import DiskTier
from distperf.offload.files import StateFile
from distperf.offload.lane import HOST, Copies, Lane, StreamCopies
from distperf.offload.shelf import Shelf
from distperf.offload.spans import SPAN, cut, lay_out, shelve, whole
from distperf.offload.states import Resident, States, Tier
from distperf.process_group import exchange


@dataclass(frozen=True)
class Offload:
    """Where state rests. `files`: this rank's, one a drive. `longest`: elements of a span. `params`: with stage 3.

    `copies`: how bytes get to the host and back, where not as usual for the device.
    """

    tier: str  # none | cpu | nvme
    fraction: float = 1.0
    files: tuple[Path, ...] = ()
    longest: int = SPAN
    copies: Copies | None = None
    params: str = "none"  # none | cpu | nvme


NO_OFFLOAD = Offload("none")


def rank_files(drives: Sequence[str], run_id: str, rank: int) -> tuple[Path, ...]:
    """Where a rank keeps its state, one file a drive."""
    name = f"rank-{rank:05}{folder.SUFFIX}"
    return tuple(Path(drive).absolute() / f"{folder.PREFIX}{run_id}" / name for drive in drives)


def check_drives(drives: Sequence[str]) -> None:
    """See that every rank can write to all drives, and remove what runs that died have left there. Collective.

    Raises:
        OffloadError: on every rank, when it is so on any of them; names hosts and folders.
    """
    if drives:
        together("offload.path cannot be used", lambda: _check([Path(drive).absolute() for drive in drives]))


def _check(drives: Sequence[Path]) -> None:
    for drive in drives:
        _check_drive(drive)
        folder.reclaim(drive)


def _check_drive(drive: Path) -> None:
    if not drive.exists():
        raise OffloadError(f"{drive} is not there; make it, or mount the drive")
    if not drive.is_dir():
        raise OffloadError(f"{drive} is no folder")
    try:
        with tempfile.TemporaryFile(dir=drive) as file:
            file.write(b"\0")
    except OSError as error:
        raise OffloadError(f"{drive} cannot be written: {error.strerror}") from error


def keep(
    offload: Offload, kept: Sequence[Tensor], device: torch.device, gradients: torch.dtype
) -> tuple[States, Lane | None]:
    """Where the state of trained buckets rests, and the way there and back where it is another memory than theirs.

    `kept`: (K,) working weights of each bucket, on `device`, that this rank updates; `gradients`: their dtype.

    Raises:
        OffloadError: a drive is too small or cannot be written; on every rank.
    """
    lengths = [weights.numel() for weights in kept]
    moves = device.type != "cpu" or offload.copies is not None
    if offload.tier == "none":
        whole_spans = [whole(bucket, length) for bucket, length in enumerate(lengths)]
        return States(whole_spans, Resident([s for spans in whole_spans for s in spans], kept, device)), None
    cuts = cut(lengths, offload.fraction, offload.longest)
    away = [span for spans in cuts for span in spans if span.away]
    stays = Resident([span for spans in cuts for span in spans if not span.away], kept, device)
    tier: Tier
    if offload.tier == "cpu":
        tier = Resident(away, kept, HOST, moves=moves, on_host=True)
    else:
        dtype = kept[0].dtype if kept else torch.float32
        places, sizes = lay_out(away, DiskTier.kinds(dtype, moves=moves), len(offload.files))
        tier = DiskTier(places, open_files(offload.files, sizes), kept)
    if not moves:
        return States(cuts, stays, tier), None
    copies = offload.copies or StreamCopies(device)
    return States(cuts, stays, tier), Lane(copies, away, gradients, kept[0].dtype if kept else gradients)


def open_shelf(files: Sequence[Path], kind: str, lengths: Sequence[int]) -> Shelf:
    """Room for regions of so many bytes, in files of their own beside those of optimizer state. Collective.

    Raises:
        OffloadError: as `open_files`.
    """
    places, sizes = shelve(lengths, len(files))
    named = [file.with_name(f"{file.stem}-{kind}{folder.SUFFIX}") for file in files]
    return Shelf(places, open_files(named, sizes))


def open_files(paths: Sequence[Path], sizes: Sequence[int]) -> list[StateFile]:
    """Files of these sizes. Collective: there on every rank, or on none.

    Raises:
        OffloadError: on every rank; names hosts, files and causes.
    """
    opened: list[StateFile] = []

    def open_all() -> None:
        for path, size in zip(paths, sizes, strict=True):
            opened.append(StateFile(path, size))

    try:
        together("no room for offloaded state", open_all)
    except OffloadError:
        for file in opened:
            file.close()
        raise
    return opened


def together(what: str, action: Callable[[], object]) -> None:
    """Do something on every rank. Raises OffloadError on all of them where it did so on one; names hosts and ranks."""
    problem = None
    try:
        action()
    except OffloadError as error:
        problem = str(error)
    if not dist.is_initialized():
        told = [{"host": socket.gethostname(), "problem": problem}]
    else:
        told = exchange({"host": socket.gethostname(), "problem": problem})
    found: dict[str, list[str]] = {}
    for rank, each in enumerate(told):
        if each["problem"]:
            found.setdefault(f"{each['host']}: {each['problem']}", []).append(str(rank))
    if found:
        lines = [f"{what}: {text} (rank {','.join(ranks[:8])})" for text, ranks in found.items()]
        raise OffloadError("\n".join(lines))
