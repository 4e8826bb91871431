import pytest

from distperf.recipe.planner.rates import Measure, Rates

RATES = Rates(
    "a test",
    (
        Measure("layer", "fp32", ((128.0, 1e9), (512.0, 4e9))),
        Measure("reduce", "host", ((1e3, 1e-4), (1e6, 1e-2))),
        Measure("reduce", "hosts", ((1e3, 1e-3), (1e6, 1e-1))),
    ),
)


def test_rates_between_and_beyond_what_was_measured():
    """On a straight line of logarithms between neighbours; at the ends as measured there; else nothing."""
    rates = [RATES.rate("layer", "fp32", size) for size in (64, 128, 256, 512, 4096)]
    assert rates == pytest.approx([1e9, 1e9, 2e9, 4e9, 4e9])
    assert RATES.rate("layer", "bf16", 128) is None


def test_seconds_of_calls():
    """Small messages cost a call's least, large ones by their bytes."""
    assert RATES.seconds("reduce", "host", 10.0, 10) == pytest.approx(10 * 1e-4)
    assert RATES.seconds("reduce", "host", 1e6, 1) == pytest.approx(1e-2)
    assert RATES.seconds("reduce", "host", 8e6, 2) == pytest.approx(8e-2)
    assert RATES.seconds("reduce", "host", 0.0, 0) == 0.0
    assert RATES.seconds("gather", "host", 1.0, 1) is None


def test_what_somebody_knows_better_is_left_out():
    """Arithmetic, or what goes inside of hosts or between them."""
    less = RATES.without(compute=True, inside=False, outside=True)
    assert [(m.what, m.where) for m in less.measures] == [("reduce", "host")]
