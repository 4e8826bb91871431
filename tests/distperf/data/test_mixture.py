"""Which source a sample comes from."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from distperf.data.mixture import Mixture, spread

WEIGHTS = st.lists(st.integers(1, 40), min_size=1, max_size=8)


@given(WEIGHTS)
def test_every_source_has_had_its_share_to_less_than_one_sample(weights: list[int]):
    """Over any beginning; so over any window to less than two, and over a round exactly."""
    taken, total = [0] * len(weights), sum(weights)
    for place, source in enumerate(spread(weights), start=1):
        taken[source] += 1
        for count, weight in zip(taken, weights, strict=True):
            assert abs(count * total - place * weight) < total
    assert taken == weights


@given(WEIGHTS, st.integers(0, 500))
def test_turns_of_a_source_count_up_over_rounds(weights: list[int], start: int):
    """A seek to any position knows how many samples each source has given before it."""
    mixture, turns = Mixture.of(weights), [0] * len(weights)
    for position in range(start + 50):
        source, turn = mixture.at(position)
        assert turn == turns[source]
        turns[source] += 1


def test_far_positions_cost_nothing_and_are_exact():
    """After 10**12 whole rounds, turns are what arithmetic says."""
    mixture = Mixture.of([7, 2, 1])
    sources, turns = np.array([mixture.at(10**13 + place) for place in range(10)]).T
    assert sorted(sources) == [0] * 7 + [1] * 2 + [2]
    assert turns.min() == 10**12
    assert sorted(turns[sources == 0]) == [7 * 10**12 + turn for turn in range(7)]


def test_a_known_order():
    """Seven, two and one of ten: spread, not in runs."""
    assert spread([7, 2, 1]) == [0, 0, 0, 1, 0, 0, 1, 0, 0, 2]
    assert spread([1, 1]) == [0, 1]
    assert spread([3]) == [0, 0, 0]
