"""The loss scale as a function of what happened."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from distperf.precision.scaling import GROWTH_INTERVAL, LEAST, PATIENCE, START, LossScale


def after(scale: LossScale, *overflows: bool) -> LossScale:
    for overflowed in overflows:
        scale = scale.after(overflowed)
    return scale


def test_it_halves_at_an_overflow_and_doubles_after_an_interval_without():
    """As torch's GradScaler: an overflow also starts the interval anew."""
    almost = after(LossScale(), *[False] * (GROWTH_INTERVAL - 1))
    assert almost.scale == START
    assert almost.after(False) == LossScale(2 * START)
    assert almost.after(True) == LossScale(START / 2)


def test_it_is_hopeless_only_after_overflows_in_a_row_at_the_least_scale():
    """A single good step shows that the scale was to blame."""
    least = LossScale(LEAST)
    assert after(least, *[True] * PATIENCE).is_hopeless
    assert not after(least, *[True] * (PATIENCE - 1), False, True).is_hopeless
    assert not after(LossScale(), *[True] * 16).is_hopeless


@given(st.lists(st.booleans(), max_size=60))
def test_it_stays_a_power_of_two(overflows):
    """So scaling rounds nothing."""
    scale = after(LossScale(), *overflows).scale
    assert LEAST <= scale <= START
    assert scale.hex().startswith("0x1.0000000000000p")
