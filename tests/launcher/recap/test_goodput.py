import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.chronicle import Try
from launcher.recap.goodput import Goodput, StepTimes, goodput

FIRST = Try(
    1,
    1.0,
    2,
    1,
    stepped_t=5.0,
    failed_t=30.0,
    ended_t=31.0,
    first_step=1,
    last_step=20,
    checkpoints=1,
    checkpoint_s=2.0,
)
SECOND = Try(2, 33.0, 2, 1, stepped_t=36.0, ended_t=80.0, first_step=11, last_step=50)


def test_where_the_time_went():
    """Every second has a name, with the steps' own times where metrics have them."""
    found = goodput([FIRST, SECOND], StepTimes(60.0, 9.0), 80.0)
    assert found == Goodput(80.0, 60.0, 9.0, 4.0 + 3.0, 2.0, 3.0, 0.0) or found.rest_s == pytest.approx(0.0)
    assert found.total_s == pytest.approx(sum(value for _, value in found.parts))


def test_without_step_times():
    """Where steps tell no time, each took its share of what its attempt ran: half of the first one was done again."""
    found = goodput([FIRST, SECOND], StepTimes(None, None), 80.0)
    assert found.redone_s == pytest.approx(23.0 / 2)
    assert found.steps_s == pytest.approx(23.0 / 2 + 44.0)


def test_no_attempt_and_no_step():
    """A run that never began, and one whose ranks never came to a step."""
    assert goodput([], StepTimes(None, None), 0.0).share == 0.0
    assert goodput([Try(1, 2.0, 1, 1)], StepTimes(None, None), 10.0).start_s == 8.0


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.floats(0, 50), st.floats(0, 50), st.floats(0, 50)), max_size=5), st.floats(0, 1e4)
)
def test_it_adds_up(parts, more):
    """Parts are never negative, and sum to the whole."""
    tries, t = [], 0.0
    for number, (start, run, wait) in enumerate(parts, start=1):
        tries.append(
            Try(
                number,
                t,
                1,
                1,
                stepped_t=t + start,
                failed_t=t + start + run,
                first_step=number,
                last_step=number + 3,
            )
        )
        t += start + run + wait
    found = goodput(tries, StepTimes(None, None), t + more)
    assert all(value >= -1e-6 for _, value in found.parts)
    assert sum(value for _, value in found.parts) == pytest.approx(found.total_s, abs=1e-6)
