"""Files in blocks, each with a hash: hashed while they are written (checkpoint.writing), checked while read. No torch.

With a hash a block, whoever needs a part of a file can check exactly what it reads: the blocks that the part touches,
so at most two blocks more than the part. A hash a file would have every rank read whole files; a hash a tensor, whole
tensors, of which a rank of a larger mesh owns little.

The hash (xxh3-128) tells damage, not malice: who can change a file can change its hashes too.
"""

from __future__ import annotations

import errno
import os
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import xxhash

from distperf.errors import CheckpointCorrupt

HASH = "xxh3-128"
BLOCK_BYTES = 4 << 20
AHEAD_BYTES = 16 << 20  # of a file, that a disk reads while others are copied and hashed

# A network file system may show other nodes a new name only after a while (attribute and name caches of 3 s and more).
PATIENCE_S = 10.0
NOT_YET = (errno.ENOENT, errno.ESTALE)


@dataclass(frozen=True)
class FileSum:
    """How many bytes a file has, and the hash of each of its blocks."""

    bytes: int
    blocks: tuple[str, ...]


def hash_of(data: bytes | memoryview) -> str:
    """The hash of some bytes, as 32 hexadecimal digits."""
    return str(xxhash.xxh3_128_hexdigest(data))


def open_seen(path: Path, flags: int) -> int:
    """A descriptor of a file that another node made, or whose folder it made, a moment ago. Raises OSError."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return os.open(path, flags | os.O_CLOEXEC, 0o666)
        except OSError as error:
            if error.errno not in NOT_YET or time.monotonic() > deadline:
                raise
            time.sleep(0.05)


class CheckedReader:
    """A file of a checkpoint, of which nothing is given out unchecked.

    Peak extra bytes: one block.
    """

    def __init__(self, path: Path, sums: FileSum, block_bytes: int) -> None:
        self._path, self._sums, self._block_bytes = path, sums, block_bytes
        self._scratch = memoryview(bytearray(min(block_bytes, sums.bytes)))
        self._held = -1  # the block that is in _scratch
        self._soon: deque[int] = deque()
        try:
            self._fd = open_seen(path, os.O_RDONLY)
        except OSError as error:
            raise CheckpointCorrupt(f"{path}: {error.strerror}", path.name) from error

    def __enter__(self) -> CheckedReader:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: Any, trace: TracebackType | None) -> None:
        os.close(self._fd)

    def read_into(self, offset: int, target: memoryview) -> None:
        """Fill `target`, which is flat bytes, from `offset` on.

        Raises:
            CheckpointCorrupt: a block is not what was written, or cannot be read.
        """
        done = 0
        while done < len(target):
            block, skipped = divmod(offset + done, self._block_bytes)
            length = self._length(block)
            part = target[done:][: length - skipped]
            if not part:
                raise CheckpointCorrupt(f"{self._path}: has no byte {offset + done}", self._path.name)
            if len(part) == length:
                self._fetch(block, part)
            else:
                part[:] = self._fetched(block)[skipped:][: len(part)]
            done += len(part)

    def expect(self, spans: Iterable[tuple[int, int]]) -> None:
        """Bytes, from and to, that will be read in this order: the kernel begins with some before they are asked for.

        By itself it looks 128 KiB ahead, too little to keep a fast disk busy while blocks are hashed.
        """
        blocks = (range(start // self._block_bytes, -(-stop // self._block_bytes)) for start, stop in spans)
        self._soon = deque(dict.fromkeys(block for of_span in blocks for block in of_span))

    def damaged(self) -> Iterator[CheckpointCorrupt]:
        """What is wrong with each block of the file that is not what was written."""
        self._held = -1
        self.expect([(0, self._sums.bytes)])
        for block in range(len(self._sums.blocks)):
            try:
                self._fetch(block, self._scratch[: self._length(block)])
            except CheckpointCorrupt as error:
                yield error

    def _length(self, block: int) -> int:
        return max(0, min(self._block_bytes, self._sums.bytes - block * self._block_bytes))

    def _fetched(self, block: int) -> memoryview:
        whole = self._scratch[: self._length(block)]
        if self._held != block:
            self._held = -1
            self._fetch(block, whole)
            self._held = block
        return whole

    def _fetch(self, block: int, into: memoryview) -> None:
        start = block * self._block_bytes
        place = f"{self._path}: bytes {start:,} to {start + len(into):,}"
        span = (start, start + len(into))
        try:
            self._ask_ahead(start)
            done = 0
            while done < len(into):
                count = os.preadv(self._fd, [into[done:]], start + done)
                if not count:
                    break
                done += count
        except OSError as error:
            raise CheckpointCorrupt(
                f"{place} cannot be read: {error.strerror}", self._path.name, span
            ) from error
        if done < len(into) or hash_of(into) != self._sums.blocks[block]:
            raise CheckpointCorrupt(f"{place} are not what was written", self._path.name, span)

    def _ask_ahead(self, at: int) -> None:
        while self._soon and self._soon[0] * self._block_bytes <= at + AHEAD_BYTES:
            start = self._soon.popleft() * self._block_bytes
            os.posix_fadvise(self._fd, start, self._block_bytes, os.POSIX_FADV_WILLNEED)


def read_checked(path: Path, sums: FileSum, block_bytes: int) -> bytes:
    """All of a small file. Raises CheckpointCorrupt."""
    whole = bytearray(sums.bytes)
    with CheckedReader(path, sums, block_bytes) as reader:
        reader.read_into(0, memoryview(whole))
    return bytes(whole)
