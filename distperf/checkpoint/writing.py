"""New files, hashed by the block while they are written, past the page cache where a file system allows that.

    fill and hash    block k      the caller
    write            k-1, k-2     threads

Through the page cache the bytes would be copied there first and forced to disk last, which takes twice the time, and
they would drive out of memory what training reads.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any

from distperf.checkpoint.blocks import BLOCK_BYTES, FileSum, hash_of, open_seen

WRITES = 2  # under way at once
PAGE = 4096  # direct I/O takes multiples of this, from and to addresses that are
# What a file system without direct I/O says when asked for it, or at the first write.
NOT_DIRECT = (errno.EINVAL, errno.EOPNOTSUPP)


class HashingWriter:
    """A new file, hashed as it is written. Raises OSError, also of writes that an earlier call has begun.

    Peak extra bytes: WRITES + 1 blocks.
    """

    def __init__(self, path: Path, block_bytes: int = BLOCK_BYTES) -> None:
        self.size = 0
        self._block_bytes = block_bytes
        self._hashes: list[str] = []
        self._filling = self._new_buffer()
        self._writing: deque[tuple[Future[None], memoryview]] = deque()
        self._threads: ThreadPoolExecutor | None = None  # a small file needs none
        self._fd = open_seen(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        self._direct = False

    def __enter__(self) -> HashingWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: Any, trace: TracebackType | None) -> None:
        if self._threads is not None:
            self._threads.shutdown()
        try:
            os.close(self._fd)
        except OSError:
            if kind is None:
                raise

    def write(self, data: bytes | memoryview) -> int:
        """Append."""
        view = memoryview(data).cast("B")
        at = 0
        while at < len(view):
            filled = self.size % self._block_bytes
            part = view[at:][: self._block_bytes - filled]
            self._filling[filled:][: len(part)] = part
            at += len(part)
            self.size += len(part)
            if filled + len(part) == self._block_bytes:
                self._begin_write()
        return len(view)

    def finish(self) -> FileSum:
        """Force the file to disk."""
        self._wait_for_writes(0)
        if rest := self.size % self._block_bytes:
            last = self._filling[:rest]
            self._hashes.append(hash_of(last))
            self._set_direct(False)  # it is no multiple of a page
            self._put(last, self.size - rest)
        os.fsync(self._fd)
        return FileSum(self.size, tuple(self._hashes))

    def _begin_write(self) -> None:
        block, self._filling = self._filling, self._wait_for_writes(WRITES - 1) or self._new_buffer()
        self._hashes.append(hash_of(block))
        if self._threads is None:
            self._threads = ThreadPoolExecutor(WRITES, thread_name_prefix="distperf-checkpoint")
            self._set_direct(self._block_bytes % PAGE == 0)
        done = self._threads.submit(self._put, block, self.size - len(block))
        self._writing.append((done, block))

    def _wait_for_writes(self, leave: int) -> memoryview | None:
        """Until only so many are under way. A buffer that has become free, if one has."""
        free = None
        while len(self._writing) > leave:
            done, free = self._writing.popleft()
            done.result()
        return free

    def _put(self, data: memoryview, offset: int) -> None:
        """Repeat until all is through: a signal, a quota or a network may cut a request short."""
        while data:
            direct = self._direct
            try:
                count = os.pwrite(self._fd, data, offset)
            except OSError as error:
                if error.errno not in NOT_DIRECT or not direct:
                    raise
                self._set_direct(False)
            else:
                data, offset = data[count:], offset + count

    def _set_direct(self, direct: bool) -> None:
        """Pass the page cache by from now on, where the file system can; or do not."""
        flags = fcntl.fcntl(self._fd, fcntl.F_GETFL) & ~os.O_DIRECT
        try:
            fcntl.fcntl(self._fd, fcntl.F_SETFL, flags | (os.O_DIRECT if direct else 0))
        except OSError as error:
            if error.errno not in NOT_DIRECT:
                raise
            direct = False
        self._direct = direct

    def _new_buffer(self) -> memoryview:
        """At the address of a page, as direct I/O wants it."""
        return memoryview(mmap.mmap(-1, self._block_bytes))
