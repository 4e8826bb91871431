"""The whole program with evaluations: one number on every mesh, and a training that does not notice."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from train_program import TINY, Ranks, data_spec, make_spec, train

from distperf.recipe.runspec import EvalSpec, RunSpec

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

MODEL = dataclasses.replace(TINY, layers=4, kv_heads=4, vocab=257, dropout=0.2)
STEPS = 5
HELD = 27  # of 251 windows: no multiple of what any number of ranks takes at once


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("text")
    (folder / "a.txt").write_bytes(bytes((i * i // 7) % 251 for i in range(251 * 16)))
    return folder


def spec_of(text: Path, tmp: Path, evaluation: EvalSpec, schedule: str = "1f1b", **layout: Any) -> RunSpec:
    data = data_spec(text=(str(text / "a.txt"),), validation_share=0.11)
    spec = make_spec(tmp, steps=STEPS, model=MODEL, data=data, evaluation=evaluation, **layout)
    pp = spec.parallel.pp
    if pp > 1:
        stages = pp * (1 if schedule == "1f1b" else 2)
        parallel = dataclasses.replace(spec.parallel, pp_schedule=schedule, pp_layers=(4 // stages,) * stages)
        spec = dataclasses.replace(spec, parallel=parallel)
    return spec


def run(text: Path, spec: RunSpec) -> Ranks:
    return train(spec, DISTPERF_CACHE=str(text / "cache"))


def eval_losses(ranks: Ranks) -> dict[int, float]:
    return {
        record["step"]: record["eval_loss"]
        for record in ranks.ranks[0].of("metrics")
        if "eval_loss" in record
    }


@pytest.fixture(scope="module")
def one(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Ranks:
    """One process, all held samples in batches of 8, the last of which is a tail of 1."""
    return run(text, spec_of(text, tmp_path_factory.mktemp("one"), EvalSpec(2, None, 8)))


def test_training_does_not_notice_f10(text, one, tmp_path):
    """F10: with evaluations of another batch size, losses and dropout of training are to the bit those without."""
    without = run(text, spec_of(text, tmp_path, EvalSpec(0, None, 8)))
    assert one.losses() == without.losses()
    assert not eval_losses(without)
    found = eval_losses(one)
    assert list(found) == [2, 4, 5]
    assert found[5] < found[2]
    events = [record for record in one.ranks[0].of("event") if record["event"] == "eval"]
    assert [event["tokens"] for event in events] == [HELD * 16] * 3
    phases = [record["phase"] for record in one.ranks[0].of("phase")]
    assert phases.count("eval") == 3
    assert phases[phases.index("eval") + 1] == "train"
    assert "evaluation after step 2: loss" in one.output


@pytest.mark.parametrize(
    "layout",
    [
        {"world": 3, "zero": 3},
        {"world": 4, "zero": 1, "axes": {"tp": 2, "cp": 2}},
        {"world": 2, "axes": {"pp": 2}, "accumulation": 6, "schedule": "zbv"},
        {"world": 4, "zero": 2, "axes": {"pp": 2}, "accumulation": 6},
    ],
    ids=["zero 3", "tp x cp", "zbv", "pp x dp"],
)
def test_every_mesh_finds_the_same(text, one, tmp_path, layout):
    """Uneven shares, divided layers and sequences, pipelines: each held sample counts once."""
    ranks = run(text, spec_of(text, tmp_path, EvalSpec(2, None, 2), **layout))
    assert eval_losses(ranks) == {
        step: pytest.approx(loss, rel=1e-5) for step, loss in eval_losses(one).items()
    }
    assert ranks.losses() == {step: pytest.approx(loss, rel=1e-5) for step, loss in one.losses().items()}
