import math
from dataclasses import replace

from launcher.alarms import alarms
from launcher.figures import Figures
from launcher.state import Policy, Rank, RunState

STATE = RunState("r", "r", Policy(1, 10, 25, 30, False), (Rank(0, 0, "a", 0),), 9, {}, state="running")


def steps(losses, step_s=1.0):
    return [
        {"step": n, "loss": float(loss), "grad_norm": 1.0, "step_s": step_s}
        for n, loss in enumerate(losses, start=1)
    ]


def test_a_healthy_run_is_not_odd():
    """Falling, noisy and constant losses, and too few steps to judge by: nothing is said."""
    for losses in ([10 / n for n in range(1, 21)], [2.0, 2.1, 1.9, 2.05] * 5, [3.0] * 20, [1.0, 90.0], []):
        assert alarms(STATE, steps(losses), []) == []


def test_loss():
    """A jump of the newest loss; a loss or a norm that is no number."""
    (spike,) = alarms(STATE, steps([2.0, 2.02, 1.98, 2.01] * 4 + [4.5]), [])
    assert spike == "loss jumped to 4.5, median before 2.005"
    odd = steps([2.0] * 10)
    odd[-1] |= {"loss": math.nan, "grad_norm": math.inf}
    assert alarms(STATE, odd, []) == ["loss and grad_norm are not finite at step 10"]
    odd[-1] |= {"grad_norm": 1.0}
    assert alarms(STATE, odd, []) == ["loss is not finite at step 10"]
    odd[-1] |= {"loss": None, "grad_norm": None}  # as training writes it: JSON has no NaN
    assert alarms(STATE, odd, []) == ["loss and grad_norm are not finite at step 10"]
    odd[-1] |= {"loss": 2.0, "loss_scale": 65536.0}
    assert alarms(STATE, odd, []) == []


def test_slow_steps_and_hosts():
    """Steps that have become far slower; hosts that do not answer; a run that is over is not odd."""
    recent, points = steps([2.0] * 10, step_s=5.0), steps([2.0] * 100)
    state = replace(STATE, unreachable=frozenset({"b"}))
    assert alarms(state, recent, points) == ["steps take 5 s of late, 1 s before", "1 host unreachable: b"]
    assert alarms(state, [], []) == ["1 host unreachable: b"]
    assert alarms(replace(state, exit_code=0), recent, points) == []


def test_ranks_and_nodes():
    """Waiting for data, memory that runs out, and devices that are not well."""
    parts = {"data": 0.3, "forward": 0.7}
    node = {"memory_bytes": 97, "memory_total_bytes": 100, "devices": [{"throttled": 0x40}]}
    assert alarms(STATE, [], [], Figures(1, {0: parts}, {"a": node})) == [
        "waiting for data takes 30% of a step (rank 0 on a)",
        "the memory of a is 97% full",
        "device a 0 is slowed down by heat",
    ]
    assert alarms(STATE, [], [], Figures(1, {0: {"data": 0.01, "forward": 0.7}}, {"a": {}})) == []
