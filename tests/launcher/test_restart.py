from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.restart import MAX_FRUITLESS, MAX_WAIT_S, decide
from launcher.state import Failure, Policy, RunState

FAILURE = Failure("a", 0, "exit", 1, None, "exited with code 1", None, "")


def state(attempt=1, max_restarts=3, fruitless=0, retry=True):
    return RunState(
        "r", "r", Policy(max_restarts, 10, 25, 30, True), (), None, {},
        attempt=attempt, fruitless=fruitless, failure=replace(FAILURE, retry=retry),
    )  # fmt: skip


@given(st.integers(1, 50), st.integers(0, 50), st.integers(0, 5))
def test_budget(attempt, max_restarts, fruitless):
    """There are never more than max_restarts restarts, whatever else is so."""
    verdict = decide(state(attempt, max_restarts, fruitless))
    if attempt > max_restarts:
        assert verdict.wait_s is None
    if verdict.wait_s is not None:
        assert 0 <= verdict.wait_s <= MAX_WAIT_S
        assert verdict.reason == f"restart {attempt} of {max_restarts}"


def test_backoff_grows_with_fruitless_attempts():
    """At once after an attempt that moved on, and the first time one did not; then 1 s, ... while nothing moves."""
    assert [decide(state(fruitless=n)).wait_s for n in range(MAX_FRUITLESS)] == [0.0, 0.0, 1.0]


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (state(retry=False), "the same way"),
        (state(attempt=1, max_restarts=0), "0 of 0 restarts are used"),
        (state(attempt=4), "3 of 3 restarts are used"),
        (state(attempt=4, max_restarts=9, fruitless=MAX_FRUITLESS), "no further than step"),
    ],
)
def test_no_restart(given, reason):
    """What cannot be mended, is used up, or does not move is not tried again, and the reason is said."""
    verdict = decide(given)
    assert verdict.wait_s is None
    assert reason in verdict.reason
