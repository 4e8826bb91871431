"""How documents are divided among workers."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from distperf.data.parts import LEAST_BYTES, MOST_BYTES, cut_parts, part_bytes
from distperf.data.sources import Source

FILES = st.lists(
    st.tuples(st.sampled_from(["a.txt", "b.jsonl", "c.jsonl.gz", "d.parquet"]), st.integers(1, 500)),
    min_size=1,
)


@given(FILES, st.integers(1, 200))
def test_parts_are_all_of_every_file_in_order(files: list[tuple[str, int]], size: int):
    """Extents follow each other without gap; only what can be cut is; no part but the last is small."""
    sources = [Source(Path(str(at)) / name, length, 0) for at, (name, length) in enumerate(files)]
    parts = cut_parts(sources, size)
    flat = [extent for part in parts for extent in part]
    for source in sources:
        own = [extent for extent in flat if extent.source == source]
        assert [own[0].start, *(extent.stop for extent in own)] == [
            *(extent.start for extent in own),
            source.size_bytes,
        ]
        assert len(own) == 1 or source.path.name == "b.jsonl"
    assert [extent.source for extent in flat] == sorted((e.source for e in flat), key=sources.index)
    assert all(sum(extent.size_bytes for extent in part) >= size for part in parts[:-1])
    assert all(parts)


def test_sizes_of_parts():
    """Neither so small that starting them costs more, nor so large that few workers have work."""
    assert [part_bytes(total) for total in (1, 2**30, 2**50)] == [LEAST_BYTES, 2**30 // 64, MOST_BYTES]
