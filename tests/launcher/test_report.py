from dataclasses import replace
from pathlib import Path

import pytest

from launcher.report import failure_json, failure_lines, headline, memory_line, report
from launcher.state import Failure, Policy, Rank, RunState

RANKS = tuple(Rank(n, n, "gpu-a", 0, state="done", step=5) for n in range(2))
FAILED = Failure(
    "gpu-a", 1, "exit", 3, None, "exited with code 3", None, "one\ntwo\n", pid=7, step=4, followers=(0, 2, 3)
)
STATE = RunState(
    "tiny-1", "tiny", Policy(3, 10, 25, 30, False), RANKS, 9, {}, state="failed", attempt=1, t=3.2, exit_code=1,
    failure=FAILED, first_failure=FAILED,
)  # fmt: skip


def test_first_failure_first():
    """C04: the report begins with who failed, where, why and its last lines; who followed is one line."""
    assert report(STATE, Path("/runs/tiny-1"), None, {}) == [
        "first failure: rank 1 on gpu-a (pid 7) at step 4: exited with code 3",
        "  its last lines:",
        "    | one",
        "    | two",
        "  ranks 0,2-3 followed",
        "run tiny-1 failed (exit code 1): step 5 of 9 in 3.2 s",
        "  folder      /runs/tiny-1",
    ]


def test_a_traceback_stands_for_the_last_lines():
    """Where the rank told its exception, that is shown; the end of it when it is long."""
    lines = failure_lines(replace(FAILED, traceback="\n".join(f"frame {n}" for n in range(99))))
    assert lines[1] == "  traceback:"
    assert lines[-2] == "    | frame 98"
    assert len(lines) < 20


def test_nothing_of_a_rank_can_move_the_cursor():
    """Messages and last lines come from ranks: escapes are removed, a bar is its last state."""
    hostile = replace(FAILED, message="\x1b[2Jbad\nsecond", log_tail="1%\r2%\n\x1b]0;t\x07x")
    text = "\n".join(failure_lines(hostile))
    assert "\x1b" not in text
    assert "\r" not in text
    assert "bad\n    second" in text
    assert "| 2%\n    | x" in text


def test_a_lost_node():
    """It has no rank and no last lines."""
    lost = replace(FAILED, rank=None, pid=None, step=0, log_tail="", followers=(), message="cut")
    assert failure_lines(lost) == ["first failure: gpu-a: cut"]


def test_a_finished_run_has_no_failure():
    """What an earlier attempt failed of is not the report of a run that finished."""
    state = replace(
        STATE, state="finished", exit_code=0, attempt=2, ranks=tuple(replace(r, step=9) for r in RANKS)
    )
    first, last = {"loss": 5.5}, {"loss": 1.25, "tokens_per_s": 12345.6, "peak_bytes": 2**20}
    lines = report(state, Path("/r"), first, last)
    assert lines[0] == "run tiny-1 finished: 9 steps in 3.2 s, 2 attempts"
    assert lines[1] == "  loss 5.5000 -> 1.2500   12,346 tokens/s   peak 1.0 MiB a rank"


def test_how_to_go_on():
    """A run that ended early with a checkpoint says how to go on from it."""
    lines = report(replace(STATE, checkpoint="/c/step-5"), Path("/r"), None, {})
    assert "  checkpoint  /c/step-5" in lines
    assert lines[-1] == "  go on with  distperf launch /r/recipe.yaml --resume /r"


@pytest.mark.parametrize("value", [None, "nan", True, [], float("nan")])
def test_odd_metrics(value):
    """Metrics come from ranks: what is no number is left out, nothing raises."""
    assert report(
        STATE, Path("/r"), {"loss": value}, {"loss": value, "tokens_per_s": "x", "peak_bytes": None}
    )


def test_memory_line():
    """The rank that holds most, by kind."""
    ranks = (
        replace(RANKS[0], memory={"parameters_bytes": 1024, "optimizer_bytes": 8192}),
        replace(RANKS[1], memory={"parameters_bytes": 1024}),
    )
    assert (
        memory_line(replace(STATE, ranks=ranks)) == "memory      parameters 1.0 KiB, optimizer 8.0 KiB a rank"
    )
    assert memory_line(STATE) == ""


def test_headline_of_a_stopped_run():
    """A script without steps says none."""
    ranks = tuple(replace(r, step=0) for r in RANKS)
    state = replace(STATE, state="stopped", exit_code=130, steps=None, ranks=ranks)
    assert headline(state) == "run tiny-1 was stopped (exit code 130) in 3.2 s"


def test_failure_json():
    """FAILURE has the promised keys, lists as lists; no failure is null."""
    value = failure_json(FAILED)
    assert value.keys() >= {
        "host", "rank", "cause", "exit_code", "signal", "message", "traceback", "log_tail", "followers"
    }  # fmt: skip
    assert value["followers"] == [0, 2, 3]
    assert failure_json(None) is None


def test_a_stall():
    """What every rank was doing, equal ones once, safe on a terminal; then the last lines of the one that held up."""
    waits = {
        "ranks": "0,2-3",
        "where": "in a.py:3 step",
        "collective": "all_reduce #17",
        "stack": "a.py:3 step\na.py:9 <module>",
    }
    own = {"ranks": "1", "where": "in \x1b[2Jb.py:1 f", "collective": None, "stack": "b.py:1 f"}
    stalled = replace(
        FAILED, cause="stall", message="has not finished step 5", stacks=(waits, own), traceback="b.py:1 f"
    )
    assert failure_lines(stalled)[1:-3] == [
        "  ranks 0,2-3: in a.py:3 step, all_reduce #17",
        "    | a.py:3 step",
        "    | a.py:9 <module>",
        "  rank 1: in b.py:1 f",
        "    | b.py:1 f",
        "  its last lines:",
    ]
    assert failure_json(stalled)["stacks"] == [waits, own]
