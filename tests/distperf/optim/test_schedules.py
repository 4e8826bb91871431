"""Learning rate over steps."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distperf.optim.schedules import lr_at
from distperf.recipe.runspec import ScheduleSpec

names = st.sampled_from(["constant", "cosine", "linear", "wsd"])
LR, MIN = 1e-3, 1e-5


def spec_of(name: str, steps: int, warmup: int) -> ScheduleSpec:
    decay = (steps - warmup) // 4 if name == "wsd" else steps - warmup
    return ScheduleSpec(name, warmup, decay, MIN)


@given(names, st.integers(2, 300), st.data())
def test_rises_to_the_peak_and_never_again(name, steps, data):
    """Up to the end of warm-up the rate rises and reaches its peak exactly; from there it does not rise."""
    warmup = data.draw(st.integers(0, steps - 1))
    spec = spec_of(name, steps, warmup)
    rates = [lr_at(step, spec, LR, steps) for step in range(1, steps + 1)]
    rising, falling = rates[:warmup], rates[max(0, warmup - 1) :]
    assert rising == sorted(rising)
    assert not rising or rising[-1] == LR
    assert all(later <= earlier + 1e-12 for earlier, later in pairwise(falling))
    assert all(0 < rate <= LR for rate in rates)


@given(st.sampled_from(["cosine", "linear"]), st.integers(2, 300), st.data())
def test_decays_to_the_minimum(name, steps, data):
    """The last step runs at min_lr, and so does any step after it."""
    spec = spec_of(name, steps, data.draw(st.integers(0, steps - 1)))
    assert lr_at(steps, spec, LR, steps) == pytest.approx(MIN)
    assert lr_at(steps + 7, spec, LR, steps) == pytest.approx(MIN)


def test_known_values():
    """Half-way through the decay cosine and linear are half-way down; wsd is still at its peak."""
    halfway = {name: lr_at(60, ScheduleSpec(name, 20, 80, 0.0), 1.0, 100) for name in ("cosine", "linear")}
    assert halfway == {"cosine": pytest.approx(0.5), "linear": pytest.approx(0.5)}
    wsd = ScheduleSpec("wsd", 20, 20, 0.0)
    assert [lr_at(s, wsd, 1.0, 100) for s in (10, 60, 80, 90, 100)] == pytest.approx(
        [0.5, 1.0, 1.0, 0.5, 0.0]
    )
    assert lr_at(100, ScheduleSpec("constant", 0, 0, 0.0), 1.0, 100) == 1.0
