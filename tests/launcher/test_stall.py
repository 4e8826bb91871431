from hypothesis import given
from hypothesis import strategies as st

from launcher import stall
from launcher.stall import Pace, judge, limit, passed, seen


def wait(pace, seconds):
    for _ in range(round(seconds / 0.5)):
        pace = passed(pace, pace.t + 0.5)
    return pace


def stepping(count, every_s, phases=frozenset({"train"}), pace=None):
    pace = Pace() if pace is None else pace
    for step in range(1, count + 1):
        pace = seen(wait(pace, every_s), step, phases)
    return pace


def test_start_up():
    """Until two steps are known a start may take ten minutes; a number is no less than that."""
    for pace in (Pace(), stepping(1, 5)):
        assert limit(pace, None, script=False).seconds == 600
    assert limit(Pace(), 5.0, script=False).seconds == 600
    assert limit(Pace(), 900.0, script=False).seconds == 900


def test_auto_learns():
    """Ten times the longest of the last 50 steps, and never under 30 s."""
    assert limit(stepping(5, 1), None, script=False).seconds == 30
    slow = stepping(5, 10)
    assert limit(slow, None, script=False).seconds == 100
    quick_again = slow
    for step in range(6, 60):
        quick_again = seen(wait(quick_again, 1), step, frozenset({"train"}))
    assert limit(quick_again, None, script=False).seconds == 30


def test_an_epoch_a_step():
    """A script that reports once an hour is given ten times its first hour before its second report."""
    assert limit(stepping(1, 3600, frozenset()), None, script=True).seconds == 36000


def test_a_number():
    """It holds from the first step on, whatever the pace, with a little for heartbeats."""
    pace = stepping(1, 20)
    assert limit(pace, 5.0, script=False).seconds == 5
    assert judge(wait(pace, 7), 5.0, script=False) is None
    assert judge(wait(pace, 8), 5.0, script=False) == (
        "no progress for 8 s; the limit is 5 s: launch.stall_timeout_s"
    )


def test_pauses_have_their_own_allowance():
    """A checkpoint or an evaluation: five minutes, or ten times the longest so far, whatever the number for steps."""
    pace = stepping(5, 1)
    for phase in stall.PAUSES:
        there = seen(pace, 5, frozenset({"train", phase}))
        assert limit(there, 5.0, script=False).seconds == 300
        again = seen(seen(wait(there, 60), 5, frozenset({"train"})), 5, frozenset({phase}))
        assert limit(again, None, script=False).seconds == 600
        assert limit(seen(again, 5, frozenset({"train"})), 5.0, script=False).seconds == 5


def test_a_pause_is_no_slow_step():
    """What a checkpoint took is not learned as a step."""
    pace = seen(wait(seen(stepping(5, 1), 5, frozenset({"checkpoint"})), 100), 5, frozenset({"train"}))
    assert limit(seen(wait(pace, 1), 6, frozenset({"train"})), None, script=False).seconds == 30


def test_preparing_data_has_no_limit():
    """Tokenising may take hours on one rank while the others wait."""
    pace = seen(Pace(), 0, frozenset({"build", "data"}))
    assert judge(wait(pace, 9000), 5.0, script=False) is None
    assert judge(wait(seen(pace, 0, frozenset({"build"})), 603), 5.0, script=False) is not None


@given(st.lists(st.floats(0.5, 25.0), min_size=3, max_size=80), st.none() | st.floats(25.0, 100.0))
def test_no_stall_while_steps_come(gaps, timeout_s):
    """With every gap below the limit in force nothing is ever called a stall."""
    pace = Pace()
    for step, gap in enumerate(gaps, 1):
        pace = wait(pace, gap)
        assert judge(pace, timeout_s, script=False) is None
        pace = seen(pace, step, frozenset({"train"}))


@given(st.lists(st.floats(0.5, 20.0), min_size=2, max_size=60), st.none() | st.floats(1.0, 30.0))
def test_every_stall_is_found(gaps, timeout_s):
    """A run that stops moving is called stalled after its limit, once two steps are known."""
    pace = Pace()
    for step, gap in enumerate(gaps, 1):
        pace = seen(wait(pace, gap), step, frozenset({"train"}))
    found = limit(pace, timeout_s, script=False)
    assert judge(wait(pace, found.seconds + stall.SLACK_S + 1), timeout_s, script=False) is not None
