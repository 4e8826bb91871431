import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.dashboard.lines import Look, width
from launcher.dashboard.plot import plot, short

NUMBERS = st.floats(allow_nan=True, allow_infinity=True, width=32)


def text(lines):
    return ["".join(span.text for span in spans) for spans in lines]


@settings(deadline=None)  # pictures, on a machine that others use too
@given(st.lists(NUMBERS, max_size=60), st.integers(20, 90), st.integers(2, 12), st.booleans())
def test_any_points_fit(values, columns, rows, plain):
    """Any numbers, none and not-a-number among them, make a picture of the room's size."""
    lines = plot([(float(n), value) for n, value in enumerate(values)], Look(columns, rows, plain))
    assert len(lines) == rows
    assert all(width(spans) <= columns for spans in lines)
    assert all(line.isascii() for line in text(lines)) or not plain


def test_a_falling_line():
    """Highest left above, lowest right below, extremes at the axis, ends of x below it."""
    lines = text(plot([(float(n), 10.0 - n) for n in range(10)], Look(29, 6, ascii=True)))
    assert lines[0].startswith("      10|*")
    assert lines[4].startswith("       1|")
    assert lines[4].endswith("**")
    assert lines[5].split() == ["0", "9"]


@pytest.mark.parametrize(
    ("value", "told"), [(1.2e6, "1.2M"), (0, "0"), (3e-4, "3.0e-04"), (2.3142, "2.314"), (-5e3, "-5k")]
)
def test_short(value, told):
    """Few characters, whatever the size."""
    assert short(value) == told
    assert len(short(math.pi * 1e11)) <= 8
