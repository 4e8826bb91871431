from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distperf.bench.rounds import rounds


@given(st.integers(1, 40))
def test_every_pair_meets_once(count):
    """Enough rounds have every pair exactly once, and nobody twice in a round."""
    met = []
    for pairs in rounds(count, most=count + 1):
        assert all(pairs[pairs[one]] == one for one in pairs)
        met += [(one, other) for one, other in pairs.items() if one < other]
    assert sorted(met) == list(combinations(range(count), 2))


@pytest.mark.parametrize("count", [50, 51])
def test_of_many_some_rounds(count):
    """No more rounds than were asked for; everybody meets others in them."""
    found = rounds(count, most=5)
    assert len(found) == 5
    assert set().union(*found) == set(range(count))
