"""How state is cut into spans, and where these lie on drives."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from distperf.offload.spans import BLOCK, FP32, cut, lay_out

LENGTHS = st.lists(st.integers(1, 200), min_size=1, max_size=8)


@given(LENGTHS, st.floats(0.01, 1.0), st.sampled_from([16, 48, 512]))
def test_spans_are_the_bucket_and_enough_of_them_are_away(lengths, fraction, longest):
    """In order, without gaps, at multiples of the longest; at least the fraction is away, by less than a span more."""
    spans = cut(lengths, fraction, longest)
    away = 0
    for bucket, (length, own) in enumerate(zip(lengths, spans, strict=True)):
        assert [span.bucket for span in own] == [bucket] * len(own)
        assert [span.start for span in own] == list(range(0, length, longest))
        assert [span.stop for span in own] == [min(at + longest, length) for at in range(0, length, longest)]
        away += sum(span.numel for span in own if span.away)
    assert fraction * sum(lengths) <= away < fraction * sum(lengths) + longest


@given(LENGTHS, st.integers(2, 3), st.integers(1, 3))
def test_extents_are_aligned_apart_and_spread(lengths, kinds, drives):
    """Whole blocks, no two at one place, every drive with about as much as the others."""
    spans = [span for own in cut(lengths, 1.0, 64) for span in own]
    places, sizes = lay_out(spans, kinds, drives)
    assert list(places) == spans
    for drive in range(drives):
        own = sorted((e.offset, e.bytes) for e in places.values() if e.drive == drive)
        assert [offset for offset, _ in own] == [sum(b for _, b in own[:at]) for at in range(len(own))]
        assert sum(b for _, b in own) == sizes[drive]
    for span, extent in places.items():
        assert extent.offset % BLOCK == extent.stride % BLOCK == 0
        assert extent.stride >= span.numel * FP32
        assert extent.kinds == kinds
    assert max(sizes) - min(sizes) <= max(extent.bytes for extent in places.values())
