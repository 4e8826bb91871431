"""States that rest on drives: while one span is updated, the next are read and the last are written.

    read    k+1, k+2, ...          threads
    update  k                      the caller
    write   k-1, k-2, ...          threads

A span's state is one extent: a single request reads it, another writes it back. In memory there are a few spans'
worth of buffers and no more, however large the model.
"""

from __future__ import annotations

import mmap
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import Tensor

from distperf.offload.files import StateFile
from distperf.offload.spans import BLOCK, FP32, Extent, Span
from distperf.offload.states import State
from distperf.optim.adamw import Moments

AHEAD = 2  # reads under way for each drive, and as many writes


@dataclass(frozen=True)
class Loan:
    """A buffer with a span's state in it, or on its way there or back."""

    span: Span
    buffer: Tensor  # (bytes,) uint8
    done: Future[None]


class DiskTier:
    """Keeps states in `files`, one a drive, at `places`."""

    def __init__(
        self, places: dict[Span, Extent], files: Sequence[StateFile], working: Sequence[Tensor]
    ) -> None:
        """`places`: in the order of updates. `working`: (K,) weights of each bucket."""
        self._order, self._places, self._files, self._working = list(places), places, files, working
        self._depth = AHEAD * len(files)
        longest = max((extent.bytes for extent in places.values()), default=0)
        count = min(2 * self._depth + 1, len(places))
        self._free = [_buffer(longest) for _ in range(count)]
        self._buffers_bytes = longest * count
        self._threads = ThreadPoolExecutor(2 * self._depth, thread_name_prefix="distperf-offload")
        self._next = 0  # first span that is not being read
        self._reading: deque[Loan] = deque()
        self._updating: dict[Span, Tensor] = {}
        self._writing: deque[Loan] = deque()
        self._maps: dict[int, mmap.mmap] = {}

    @staticmethod
    def kinds(dtype: torch.dtype, *, moves: bool) -> int:
        """Tensors of a state: the moments, and weights where the working copy is not fp32 on the host."""
        return 3 if moves or dtype != torch.float32 else 2

    def prepare(self) -> None:
        """Read the first spans."""
        self._forget_views()
        if self._next == len(self._order) and not self._reading:
            self._next = 0
            self._wait_for_writes(0)
        self._read_ahead()

    def take(self, span: Span) -> State:
        """Wait for a span that was read ahead, and read on."""
        self._read_ahead()
        if not self._reading:  # all buffers are being written
            self._wait_for_writes(len(self._writing) - 1)
            self._read_ahead()
        loan = self._reading.popleft()
        assert loan.span == span, "spans come in order"
        self._read_ahead()
        loan.done.result()
        self._updating[span] = loan.buffer
        return self._state(span, loan.buffer)

    def give(self, state: State) -> None:
        """Write it back."""
        span = state.span
        buffer, extent = self._updating.pop(span), self._places[span]
        file = self._files[extent.drive]
        done = self._threads.submit(file.write, extent.offset, _bytes(buffer, extent))
        self._writing.append(Loan(span, buffer, done))
        self._read_ahead()

    def view(self, span: Span) -> State:
        """The file's contents as memory, which the kernel pages in and out."""
        self._wait_for_writes(0)
        extent = self._places[span]
        if extent.drive not in self._maps:
            self._maps[extent.drive] = self._files[extent.drive].map()
        mapped = self._maps[extent.drive]
        return self._state(
            span, torch.frombuffer(mapped, dtype=torch.uint8, count=extent.bytes, offset=extent.offset)
        )

    def settle(self) -> None:
        """Have the kernel write what was stored in views; forget what was read before."""
        self._wait_for_writes(0)
        self._forget_views()
        while self._reading:
            loan = self._reading.popleft()
            loan.done.result()
            self._free.append(loan.buffer)
        self._next = 0

    def _forget_views(self) -> None:
        """Under a memory limit what they read would press on all else."""
        for drive, mapped in self._maps.items():
            self._files[drive].flush(mapped)
        self._maps.clear()

    def memory(self) -> dict[str, int]:
        """As `Tier.memory`."""
        return {"buckets_bytes": self._buffers_bytes, "disk_bytes": sum(file.size for file in self._files)}

    def close(self) -> None:
        """Remove the files."""
        self._threads.shutdown()
        self._maps.clear()
        for file in self._files:
            file.close()

    def _read_ahead(self) -> None:
        self._wait_for_writes(self._depth)
        while self._free and self._next < len(self._order) and len(self._reading) < self._depth:
            span = self._order[self._next]
            extent, buffer = self._places[span], self._free.pop()
            file = self._files[extent.drive]
            done = self._threads.submit(file.read, extent.offset, _bytes(buffer, extent))
            self._reading.append(Loan(span, buffer, done))
            self._next += 1

    def _wait_for_writes(self, leave: int) -> None:
        """Until only so many are left. Raises OffloadError where one failed."""
        while self._writing and (len(self._writing) > leave or self._writing[0].done.done()):
            loan = self._writing.popleft()
            loan.done.result()
            self._free.append(loan.buffer)

    def _state(self, span: Span, buffer: Tensor) -> State:
        extent, length = self._places[span], span.numel * FP32
        kinds = [buffer[at * extent.stride :][:length].view(torch.float32) for at in range(extent.kinds)]
        exp_avg, exp_avg_sq = kinds[-2:]
        in_place = extent.kinds == 2
        master = self._working[span.bucket][span.part] if in_place else kinds[0]
        return State(span, master, Moments(exp_avg, exp_avg_sq), is_working=in_place)


def _buffer(size: int) -> Tensor:
    """(size,) uint8 at the start of a page; pinned on the host of a machine with devices."""
    if torch.cuda.is_available():
        buffer = torch.empty(size, dtype=torch.uint8, pin_memory=True)
    else:
        buffer = torch.frombuffer(mmap.mmap(-1, size), dtype=torch.uint8)
    assert buffer.data_ptr() % BLOCK == 0, "direct I/O goes to whole pages"
    return buffer


def _bytes(buffer: Tensor, extent: Extent) -> memoryview:
    return memoryview(buffer.numpy().data)[: extent.bytes]
