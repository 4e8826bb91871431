from dataclasses import replace

import pytest

from launcher.state import Policy, Rank, RunState
from launcher.summary import LEAST_COLUMNS, changes, live_line, progress_bar, progress_line

RANKS = tuple(Rank(n, n, "gpu-a", 0) for n in range(2))
STATE = RunState("r", "r", Policy(3, 10, 25, 30, False), RANKS, 9, {}, state="running", attempt=1)
LAST = {"step": 3, "loss": 2.5, "tokens_per_s": 1234.4, "step_s": 2.0}


def test_progress_line():
    """Step of steps with loss, speed and time left; before the first step, what the ranks are about."""
    assert progress_line(STATE, LAST) == "step 3/9   loss 2.5000   1,234 tokens/s   12 s left"
    assert "loss 2.5000   eval 2.7500   1,234" in progress_line(STATE, {**LAST, "eval_loss": 2.75})
    building = replace(STATE, ranks=tuple(replace(r, phase="build") for r in RANKS), state="starting")
    assert progress_line(building, {}) == "starting (build)"


@pytest.mark.parametrize("columns", [20, LEAST_COLUMNS - 1, LEAST_COLUMNS, 200])
def test_live_line(columns):
    """A bar where there is room for it, and never as wide as the terminal."""
    line = live_line(STATE, LAST, columns, plain=True)
    assert len(line) < columns
    assert ("[########................]  33%" in line) == (columns >= LEAST_COLUMNS)


def test_bar():
    """From empty to full, whatever the share."""
    assert progress_bar(0.5, plain=True) == "[############............]  50%"
    assert [progress_bar(share, plain=False)[-4:] for share in (-1.0, 0.0, 1.0, 7.0)] == [
        "  0%",
        "  0%",
        "100%",
        "100%",
    ]


def test_changes():
    """What has become of ranks, hosts and checkpoints; nothing for nothing."""
    assert changes(STATE, STATE) == []
    started = replace(
        STATE, ranks=tuple(replace(r, pid=9, state="running") for r in RANKS), checkpoint="/c/5"
    )
    assert changes(STATE, started) == ["ranks 0-1: started on gpu-a", "checkpoint /c/5"]
    ended = replace(started, ranks=(replace(started.ranks[0], state="failed"), started.ranks[1]))
    assert changes(started, replace(ended, unreachable=frozenset({"b"}))) == [
        "rank 0: failed",
        "b does not answer",
    ]
    assert changes(STATE, replace(STATE, attempt=2)) == ["attempt 2: 2 ranks"]
