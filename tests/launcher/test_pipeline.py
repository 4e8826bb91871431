"""A pipeline's plan, as numbers and as a picture."""

import pytest

from launcher.dryrun import Wanted, as_json, as_text, outcome
from launcher.planning import Request

RECIPE = """\
model: {family: llama, layers: 30, hidden: 64, heads: 4, ffn: 128, vocab: 300}
data: {synthetic: true, seq_len: 64}
train: {steps: 5, global_batch: 4, micro_batch: 1}
parallel: {pp: 4}
"""


@pytest.fixture
def planned(tmp_path):
    (tmp_path / "r.yaml").write_text(RECIPE)
    return lambda *sets: outcome(
        Request(recipe=tmp_path / "r.yaml", sets=("launch.nproc=4", *sets)), probe=False
    )


def test_a_step_is_drawn(planned):
    """Ranks by time: a backward pass takes two slots, a dot is waiting; the bubble is (P - 1) / (M + P - 1)."""
    lines = as_text(planned(), False, Wanted(drawn=True))
    at = next(i for i, line in enumerate(lines) if line.startswith("pipeline"))
    assert "1f1b, 4 micro-batches, bubble 42.9%" in lines[at]
    assert lines[at + 3 : at + 7] == [
        "pp 0  F0 F1 F2 F3 .  .  .  .  .  .  B0=== .  B1=== .  B2=== .  B3===",
        "pp 1  .  F0 F1 F2 .  .  .  .  B0=== F3 B1=== .  B2=== .  B3=== .  .",
        "pp 2  .  .  F0 F1 .  .  B0=== F2 B1=== F3 B2=== .  B3=== .  .  .  .",
        "pp 3  .  .  .  F0 B0=== F1 B1=== F2 B2=== F3 B3=== .  .  .  .  .  .",
    ]


@pytest.mark.parametrize("schedule", ["gpipe", "interleaved_1f1b", "zero_bubble", "zbv", "dualpipev"])
@pytest.mark.parametrize("count", [8, 200])
def test_pictures_fit_the_terminal(planned, schedule, count):
    """80 columns, whatever the size; folded lines say so, and so does a picture of fewer micro-batches."""
    lines = as_text(
        planned(f"parallel.pp_schedule={schedule}", f"train.global_batch={count}"), False, Wanted(drawn=True)
    )
    at = next(i for i, line in enumerate(lines) if line.startswith("pipeline"))
    drawn = [line for line in lines[at + 1 :] if not line.startswith(("rank", "warning"))]
    assert all(len(line) <= 80 and line.isascii() for line in drawn)
    assert any(line.startswith("slots 0 to ") for line in drawn)
    assert ("drawn with 32 of the 200 micro-batches" in drawn) == (count == 200)


def test_numbers_for_scripts(planned):
    """Stages with their layers and what they hold, the bubble, and with --draw every pass."""
    found = as_json(planned("parallel.pp_schedule=zbv", "train.global_batch=8"), False, Wanted(drawn=True))
    told = found["pipeline"]
    assert [stage["pp"] for stage in told["stages"]] == [0, 1, 2, 3, 3, 2, 1, 0]
    assert [stage["layers"] for stage in told["stages"]][-1][1] == 30
    assert [stage["in_flight"] for stage in told["stages"]] == [8, 7, 6, 5, 4, 3, 2, 1]
    assert 0.05 < told["bubble_share"] < 0.06
    assert told["grid"][0][0] == {"kind": "F", "stage": 0, "micro": 0, "start": 0, "stop": 1}
    assert "grid" not in as_json(planned(), with_commands=False)["pipeline"]


def test_without_a_pipeline(planned):
    assert as_json(planned("parallel.pp=1"), with_commands=False)["pipeline"] is None
    assert "nothing to draw" in "".join(as_text(planned("parallel.pp=1"), False, Wanted(drawn=True)))
