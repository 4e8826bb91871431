import json

import pytest

from distperf.recipe.runspec import to_json
from launcher import forecast
from launcher.outofmemory import explained
from launcher.planning import Request, parse, plan
from launcher.rundir import RunDir


@pytest.fixture
def folder(tmp_path):
    """A run's folder with its plan, on hosts that are too small."""
    recipe = tmp_path / "r.yaml"
    recipe.write_text(
        "model: {preset: llama-1b, vocab: 32000}\ndata: {synthetic: true, seq_len: 2048}\n"
        "train: {steps: 10, global_batch: 64, micro_batch: 8}\n"
    )
    planned = plan(parse(Request(recipe=recipe, assume="1x4x24GiB")))
    run = RunDir(tmp_path / "run")
    run.path.mkdir()
    run.runspec.write_text(to_json(planned.spec))
    value = {**forecast.as_json(forecast.forecast(planned)), "ranks_per_host": planned.ranks_per_host}
    run.plan.write_text(json.dumps(value))
    return run


def test_planned_there_and_three_ways_out(folder):
    """Largest terms first; each way out is a key to set, with its bytes and its cost."""
    planned, heading, *ways = explained(folder)
    assert "activations of layers" in planned
    assert "there: 24.0 GiB (--assume 1x4x24GiB)" in planned
    assert heading == "  ways out, the cheapest first:"
    assert 1 <= len(ways) <= 3
    assert all("--set " in way and " instead of " in way for way in ways)


def test_without_a_plan_nothing_is_claimed(folder):
    """A script's run, or one of an older version."""
    folder.plan.unlink()
    assert explained(folder) == []
