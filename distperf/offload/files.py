"""One preallocated file on a drive: aligned extents, read and written past the page cache where that is possible.

Note [Threads, not io_uring]: requests are megabytes long, so a few threads in preadv and pwritev, which let go of the
interpreter, keep a drive as busy as a submission queue would. There is no small binding of io_uring to depend on (the
one on the package index compiles liburing), and many containers forbid its system calls.
"""

from __future__ import annotations

import errno
import mmap
import os
import warnings
from collections.abc import Callable
from pathlib import Path

from distperf.errors import OffloadError
from distperf.offload import folder
from distperf.offload.spans import BLOCK

# What opening or the first request says where a file system has no direct I/O, or asks for larger blocks.
NOT_DIRECT = (errno.EINVAL, errno.EOPNOTSUPP)


class StateFile:
    """A file of `size` bytes, a multiple of BLOCK, that this process owns. Several threads may use it at once.

    Raises OffloadError, naming the file, for whatever the disk refuses.
    """

    def __init__(self, path: Path, size: int) -> None:
        self.path, self.size = path, size
        try:
            self._owner = folder.claim(path)
        except OSError as error:
            raise self._refused("cannot be made", error) from error
        try:
            os.ftruncate(self._owner, 0)
            if size:
                os.posix_fallocate(self._owner, 0, size)
        except OSError as error:
            free = _free_bytes(path.parent)
            self.close()
            raise self._refused(f"cannot have {size:,} bytes ({free:,} are free there)", error) from error
        self._fd = self._open_direct()

    @property
    def is_direct(self) -> bool:
        """Requests pass the page cache by."""
        return self._fd != self._owner

    def read(self, offset: int, into: memoryview) -> None:
        """Fill `into`, whole blocks, from a multiple of BLOCK on."""
        self._move("read", offset, into, lambda part, at: os.preadv(self._fd, [part], at))

    def write(self, offset: int, data: memoryview) -> None:
        """Write `data`, whole blocks, from a multiple of BLOCK on."""
        self._move("written", offset, data, lambda part, at: os.pwritev(self._fd, [part], at))

    def map(self) -> mmap.mmap:
        """The contents as memory that the kernel reads and writes at will.

        Direct I/O sees what was stored in it, and it sees what direct I/O wrote, as long as they take turns.
        """
        try:
            return mmap.mmap(self._owner, self.size)
        except OSError as error:
            raise self._refused("cannot be mapped", error) from error

    def flush(self, mapped: mmap.mmap) -> None:
        """Have the kernel write what was stored in a mapping, and give back the memory that it took, in views too."""
        try:
            mapped.flush()
            mapped.madvise(mmap.MADV_DONTNEED)
            os.posix_fadvise(self._owner, 0, 0, os.POSIX_FADV_DONTNEED)
        except OSError as error:
            raise self._refused("cannot be written", error) from error

    def close(self) -> None:
        """Remove the file."""
        if self._owner < 0:
            return
        if getattr(self, "_fd", self._owner) != self._owner:
            os.close(self._fd)
        folder.release(self.path, self._owner)
        self._owner = self._fd = -1

    def _move(
        self, done_to: str, offset: int, buffer: memoryview, request: Callable[[memoryview, int], int]
    ) -> None:
        """Repeat until all is through: a signal, a quota or a network may cut a request short."""
        assert offset % BLOCK == 0
        assert len(buffer) % BLOCK == 0
        assert offset + len(buffer) <= self.size
        done = 0
        while done < len(buffer):
            place = f"bytes {offset + done:,} to {offset + len(buffer):,} cannot be {done_to}"
            try:
                moved = request(buffer[done:], offset + done)
            except OSError as error:
                raise self._refused(place, error) from error
            whole = (done + moved) // BLOCK * BLOCK  # direct I/O goes on at a block
            if whole == done:
                raise OffloadError(
                    f"{self.path}: {place}: {moved} of {len(buffer) - done:,} bytes went through"
                )
            done = whole

    def _open_direct(self) -> int:
        """A descriptor that passes the page cache by, tried; where there is none, the plain one, with a warning."""
        try:
            fd = os.open(self.path, os.O_RDWR | os.O_CLOEXEC | os.O_DIRECT)
        except OSError as error:
            if error.errno in NOT_DIRECT:
                return self._plain(error)
            raise self._refused("cannot be opened", error) from error
        if not self.size:
            return fd
        try:
            with mmap.mmap(-1, BLOCK) as block:
                os.preadv(fd, [block], 0)
                os.pwritev(fd, [block], 0)
        except OSError as error:
            os.close(fd)
            if error.errno in NOT_DIRECT:
                return self._plain(error)
            raise self._refused("cannot be written", error) from error
        return fd

    def _plain(self, error: OSError) -> int:
        text = f"{self.path.parent.parent} takes no direct I/O ({error.strerror}): state goes through the page cache"
        warnings.warn(text, stacklevel=2)
        return self._owner

    def _refused(self, what: str, error: OSError) -> OffloadError:
        return OffloadError(f"{self.path}: {what}: {error.strerror}")


def _free_bytes(path: Path) -> int:
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize
