from dataclasses import replace

import pytest

from launcher import comparison
from launcher.chronicle import Chronicle
from launcher.comparison import Pair
from launcher.figures import Figures
from launcher.follow import Seen
from launcher.state import Policy, Rank, RunState
from launcher.tempo import Tempo

PLAN = {
    "per_rank": {"parameters_bytes": 100, "gradients_bytes": 50, "optimizer_bytes": 300, "total_bytes": 900},
    "step_s": 1.0,
    "step_terms": {"compute": 0.6, "tensor": 0.1, "data": 0.1, "pipeline": 0.0, "bubble": 0.1, "update": 0.1},
}


@pytest.fixture
def seen():
    """Two ranks, the second fuller and slower."""
    ranks = tuple(
        Rank(r, r, "a", 0, memory={"parameters_bytes": 100 + r, "optimizer_bytes": 330}) for r in (0, 1)
    )
    state = RunState("r", "r", Policy(1, 10, 25, 30, False), ranks, 9, {}, state="running", attempt=1)
    parts = {
        r: {"forward": 0.2, "backward": 0.4 + r / 10, "communication": 0.3, "optimizer": 0.05} for r in (0, 1)
    }
    steps = tuple({"step": n, "step_s": 1.0 + n / 10, "peak_bytes": 1000} for n in (1, 2, 3))
    return Seen("/r", "running", state, Chronicle(), steps, steps, Tempo(1, ()), 9.0, {"parallel": {}}, {},
                Figures(1, parts), PLAN)  # fmt: skip


def test_memory(seen):
    """The fullest rank's state by kind, and the peak of all; what no rank has told of is not known."""
    assert comparison.memory(seen) == [
        Pair("parameters", 100, 101),
        Pair("gradients", 50, None),
        Pair("optimizer", 300, 330),
        Pair("in all", 900, 1000),
    ]
    assert [pair.off for pair in comparison.memory(seen)] == ["+1.0%", "", "+10.0%", "+11.1%"]


def test_a_step(seen):
    """Its median of late, and parts of the median rank under the terms of the plan that they are found in."""
    step, computing, waiting, update = comparison.seconds(seen)
    assert (step.planned, step.came) == (1.0, pytest.approx(1.2))
    assert (computing.planned, computing.came) == (pytest.approx(0.7), pytest.approx(0.65))
    assert (waiting.planned, waiting.came) == (pytest.approx(0.2), 0.3)
    assert (update.planned, update.came) == (0.1, 0.05)


def test_without_a_plan(seen):
    """What came is told all the same, and nothing is compared with nothing."""
    found = [*comparison.memory(replace(seen, plan={})), *comparison.seconds(replace(seen, plan={}))]
    assert all(pair.planned is None and pair.came is not None and pair.off == "" for pair in found)
    assert comparison.seconds(replace(seen, plan={}, recent=(), figures=Figures())) == []


@pytest.mark.parametrize(
    ("parallel", "text"),
    [
        ({"zero": 2, "dp_shard": 4, "dp_replicate": 1, "tp": 1, "cp": 1, "pp": 1, "pp_layers": []},
         "zero 2, dp_shard 4"),
        ({"zero": 1, "dp_shard": 1, "pp": 2, "pp_schedule": "zbv", "cp": 2, "cp_method": "ring"},
         "zero 1, cp 2, pp 2, cp_method ring, schedule zbv"),
    ],
)  # fmt: skip
def test_how_a_run_is_divided(parallel, text):
    """Axes that divide nothing are not worth a word."""
    assert comparison.parallel({"parallel": parallel}) == text
