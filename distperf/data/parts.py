"""Which documents are tokenised together: parts, each by one worker, each with shards of its own. Pure.

The cut depends on the files alone, not on the number of workers, so that the shards do not either.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from distperf.data.documents import Extent, can_be_cut
from distperf.data.sources import Source

LEAST_BYTES, MOST_BYTES = 4 << 20, 256 << 20
PARTS = 64  # at least, where files are large enough: work for as many workers


def part_bytes(total: int) -> int:
    """How much a part is about, of so many bytes in all."""
    return min(max(total // PARTS, LEAST_BYTES), MOST_BYTES)


def cut_parts(sources: Sequence[Source], size: int) -> tuple[tuple[Extent, ...], ...]:
    """Extents in the order of the files, gathered into parts of at least `size` bytes, but for the last."""
    parts: list[list[Extent]] = [[]]
    filled = 0
    for extent in (extent for source in sources for extent in _extents(source, size)):
        if filled >= size:
            parts.append([])
            filled = 0
        parts[-1].append(extent)
        filled += extent.size_bytes
    return tuple(map(tuple, parts))


def _extents(source: Source, size: int) -> Iterator[Extent]:
    if not can_be_cut(source.path):
        yield Extent(source, 0, source.size_bytes)
        return
    for start in range(0, source.size_bytes, size):
        yield Extent(source, start, min(start + size, source.size_bytes))
