"""Flat regions that rest on drives: each has memory only from when it is wanted until it is let go of.

    ahead   k+1       read by threads
    bring   k         waits for that
    store   k-1 ...   written by threads, whereupon its memory is given back

A region keeps its addresses, so that tensors may be views of it as long as the run lasts; what comes and goes are the
pages behind them. Without these it reads as zeros, so whoever uses one brings it first.
"""

from __future__ import annotations

import mmap
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import torch
from torch import Tensor

from distperf.offload.files import StateFile
from distperf.offload.spans import BLOCK, Place

REQUEST = 8 << 20  # bytes that one thread reads or writes at a time
STORING = 2  # regions that are being written while another one is used

ABSENT, READING, PRESENT, WRITING = "absent", "reading", "present", "writing"


@dataclass(eq=False)
class Region:
    """Memory for what lies at `place`, and what becomes of it. `requests`: reads or writes under way."""

    place: Place
    pages: mmap.mmap
    values: Tensor  # (bytes / 4,) fp32: the pages
    stands: str = ABSENT
    requests: list[Future[None]] = field(default_factory=list)

    @classmethod
    def at(cls, place: Place) -> Region:
        """Addresses without memory. Private pages, which one call gives back."""
        pages = mmap.mmap(-1, max(place.bytes, BLOCK), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        return cls(place, pages, torch.frombuffer(pages, dtype=torch.float32, count=place.bytes // 4))

    def finish(self) -> None:
        """Wait for what is under way. Raises OffloadError where it failed."""
        requests, self.requests = self.requests, []
        for request in requests:
            request.result()

    def release(self) -> None:
        """Give its memory back."""
        self.pages.madvise(mmap.MADV_DONTNEED)
        self.stands = ABSENT


class Shelf:
    """Regions at `places` in `files`, one a drive; to begin with, all zeros."""

    def __init__(self, places: Sequence[Place], files: Sequence[StateFile]) -> None:
        self._files = files
        self._regions = [Region.at(place) for place in places]
        self._threads = ThreadPoolExecutor(4 * len(files), thread_name_prefix="distperf-shelf")
        self._storing: deque[Region] = deque()
        self._maps: dict[int, mmap.mmap] = {}
        self.peak_bytes = 0  # the most that were in memory

    def values(self, at: int) -> Tensor:
        """(bytes / 4,) fp32 of a region: always the same tensor; see `bring`."""
        return self._regions[at].values

    def ahead(self, at: int) -> None:
        """Begin to read a region that will be wanted. Views may not be used any more: what they read is let go of."""
        self._forget_views()
        region = self._regions[at]
        if region.stands == ABSENT:
            region.stands, region.requests = READING, self._submit(region, StateFile.read)
            self._count()

    def bring(self, at: int) -> None:
        """Have a region in memory, with what is on the drive."""
        self.ahead(at)
        self._hold(self._regions[at])

    def blank(self, at: int) -> None:
        """Have a region in memory, to be filled: zeros, whatever is on the drive."""
        region = self._regions[at]
        self._hold(region)
        region.release()
        region.stands = PRESENT
        self._count()

    def drop(self, at: int) -> None:
        """Let go of a region as it is on the drive."""
        region = self._regions[at]
        if region.stands in (READING, PRESENT):
            region.finish()
            region.release()

    def store(self, at: int) -> None:
        """Write a region back, then let go of it."""
        region = self._regions[at]
        assert region.stands == PRESENT, "only what is there can be stored"
        region.stands, region.requests = WRITING, self._submit(region, StateFile.write)
        self._storing.append(region)
        self._retire(STORING)

    def view(self, at: int) -> Tensor:
        """As `values`: the file's contents, which the kernel pages in and out; see `settle`."""
        self._retire(0)
        place = self._regions[at].place
        if place.drive not in self._maps:
            self._maps[place.drive] = self._files[place.drive].map()
        return torch.frombuffer(
            self._maps[place.drive], dtype=torch.float32, count=place.bytes // 4, offset=place.offset
        )

    def settle(self) -> None:
        """Have the kernel write what was stored in views, which may not be used any more; let go of all regions."""
        self._forget_views()
        self.forget()

    def forget(self) -> None:
        """Let go of all regions."""
        self._retire(0)
        for at in range(len(self._regions)):
            self.drop(at)

    @property
    def disk_bytes(self) -> int:
        """On all drives."""
        return sum(file.size for file in self._files)

    def close(self) -> None:
        """Remove the files."""
        self._threads.shutdown()
        self._maps.clear()
        for file in self._files:
            file.close()

    def _forget_views(self) -> None:
        for drive, mapped in self._maps.items():
            self._files[drive].flush(mapped)
        self._maps.clear()

    def _submit(
        self, region: Region, move: Callable[[StateFile, int, memoryview], None]
    ) -> list[Future[None]]:
        place, data = region.place, memoryview(region.pages)
        file = self._files[place.drive]
        return [
            self._threads.submit(move, file, place.offset + at, data[at : min(at + REQUEST, place.bytes)])
            for at in range(0, place.bytes, REQUEST)
        ]

    def _hold(self, region: Region) -> None:
        """Present, whatever was under way; what was to be let go of once it is written stays."""
        region.finish()
        if region.stands == WRITING:
            self._storing.remove(region)
        region.stands = PRESENT

    def _retire(self, leave: int) -> None:
        while len(self._storing) > leave:
            region = self._storing.popleft()
            region.finish()
            region.release()

    def _count(self) -> None:
        there = sum(region.place.bytes for region in self._regions if region.stands != ABSENT)
        self.peak_bytes = max(self.peak_bytes, there)
