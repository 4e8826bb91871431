"""Drives, as offload uses them: its own files, buffers and threads, all ranks of a host at once."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from distperf.bench.timing import once
from distperf.offload.disk import AHEAD, DiskTier
from distperf.offload.files import StateFile
from distperf.offload.keeping import check_drives, open_files, rank_files
from distperf.offload.spans import FP32, SPAN, cut, lay_out

Found = list[dict[str, Any]]
Case = Callable[[], Found]

PIECE_BYTES = 8 << 20
PIECES = 16  # of each rank on each drive
SPANS = 12  # of SPAN elements, for a drive
ROUND_TRIPS = 3
CPU = torch.device("cpu")


def cases(drives: Sequence[str], run_id: str, rank: int) -> Iterator[Case]:
    """Each drive alone, then all together. Raises OffloadError on every rank where one cannot be used."""
    check_drives(drives)
    for drive in drives:
        yield partial(_drive, drive, run_id, rank)
    yield partial(_tier, drives, run_id, rank)


def _drive(drive: str, run_id: str, rank: int) -> Found:
    """Bytes a second of this rank, written and then read."""
    (file,) = open_files(rank_files([drive], run_id, rank), [PIECE_BYTES * PIECES])
    try:
        rates = {name: _moved(file, move) for name, move in (("write", file.write), ("read", file.read))}
    finally:
        file.close()
    return [
        {"what": name, "where": drive, "amount": PIECE_BYTES, "value": rate, "direct": file.is_direct}
        for name, rate in rates.items()
    ]


def _moved(file: StateFile, move: Callable[[int, memoryview], None]) -> float:
    """Bytes a second with as many requests under way as the tier has."""
    buffers = [memoryview(mmap.mmap(-1, PIECE_BYTES)) for _ in range(AHEAD)]

    def lane(at: int) -> None:
        for piece in range(at, PIECES, AHEAD):
            move(piece * PIECE_BYTES, buffers[at])

    def all_pieces() -> None:
        for done in [threads.submit(lane, at) for at in range(AHEAD)]:
            done.result()

    with ThreadPoolExecutor(AHEAD) as threads:
        dist.barrier()
        return PIECE_BYTES * PIECES / once(all_pieces, CPU)


def _tier(drives: Sequence[str], run_id: str, rank: int) -> Found:
    """Bytes a second of this rank, read and written back as around an update that takes no time."""
    spans = [span for own in cut([SPAN] * SPANS * len(drives), 1.0) for span in own]
    kinds = DiskTier.kinds(torch.bfloat16, moves=False)
    places, sizes = lay_out(spans, kinds, len(drives))
    working: list[Tensor] = [torch.empty(0)] * len(spans)
    tier = DiskTier(places, open_files(rank_files(drives, run_id, rank), sizes), working)

    def round_trip() -> None:
        tier.prepare()
        for span in spans:
            tier.give(tier.take(span))
        tier.settle()

    try:
        dist.barrier()
        seconds = min(once(round_trip, CPU) for _ in range(ROUND_TRIPS))
    finally:
        tier.close()
    moved = 2 * len(spans) * SPAN * FP32 * kinds
    return [{"what": "offload", "where": "", "amount": PIECE_BYTES, "value": moved / seconds}]
