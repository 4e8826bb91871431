"""How state is cut into spans, and where these lie on drives."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from distperf.offload.spans import BLOCK, FP32, cut, following, lay_out, shelve

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


def test_regions_follow_each_other_on_each_drive():
    """Whole blocks, none over another, spread evenly."""
    places, sizes = shelve([1, 4096, 4097, 10 * 4096, 3], 2)
    assert [(place.drive, place.offset, place.bytes) for place in places] == [
        (0, 0, 4096), (1, 0, 4096), (0, 4096, 8192), (1, 4096, 40960), (0, 12288, 4096),
    ]  # fmt: skip
    assert sizes == [16384, 45056]


def test_layers_are_expected_in_the_order_they_come_in():
    """Forward from the outside on, backward from the last, and again."""
    visits = [0, 1, 2, 3, 3, 2, 1, 0, 1]
    expected = [following(before, at) for before, at in zip([-1, *visits], visits, strict=False)]
    assert expected == [1, 2, 3, 4, 2, 1, 0, -1, 2]
