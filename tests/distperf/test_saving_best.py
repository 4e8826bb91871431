"""The best checkpoint by a loss: kept while others go, pointed to, and a start for another run."""

from __future__ import annotations

import dataclasses

import pytest
from train_program import TINY, data_spec, make_spec, train

from distperf.checkpoint.manifest import list_checkpoints
from distperf.recipe.runspec import CheckpointSpec, EvalSpec, OptimizerSpec, ScheduleSpec

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


@pytest.mark.parametrize("metric", ["eval_loss", "loss"])
def test_the_best_stays_and_another_run_starts_from_it(tmp_path, metric):
    """keep 1: the newest and the best are left. With a learning rate that grows, the best is not the newest. A run that
    is told to resume from `best` goes on after its step.
    """
    (tmp_path / "a.txt").write_bytes(bytes((i * i // 7) % 251 for i in range(251 * 16)))
    data = data_spec(text=(str(tmp_path / "a.txt"),), validation_share=0.11)
    folder = tmp_path / "c"
    spec = make_spec(
        tmp_path,
        steps=14,
        model=dataclasses.replace(TINY, vocab=257),
        data=data,
        evaluation=EvalSpec(2, None, 8),
        optimizer=OptimizerSpec(
            "adamw", 3.0, (0.9, 0.95), 1e-8, 0.1, ScheduleSpec("constant", 14, 0, 0.0), ()
        ),
        checkpoint=CheckpointSpec(2, True, 1, str(folder), keep_best=metric),
    )
    ranks = train(spec, DISTPERF_CACHE=str(tmp_path / "cache"))
    lines = {line["step"]: line for line in ranks.ranks[0].of("metrics")}
    best = min((lines[step][metric], step) for step in range(2, 15, 2))[1]
    assert best < 14, "or this shows nothing"
    assert [info.step for info in list_checkpoints(folder)] == [best, 14]
    assert (folder / "best").resolve().name == f"step-{best:08d}"
    assert (folder / "latest").resolve().name == "step-00000014"
    assert f"step-{best:08d}: saved" in ranks.output
    assert f"the best by {metric} so far" in ranks.output
    kept = list_checkpoints(folder)[0].manifest
    assert kept is not None
    assert kept.metrics == {name: lines[best][name] for name in ("loss", "eval_loss")}
    other = dataclasses.replace(
        spec, run_id="other-1", checkpoint=dataclasses.replace(spec.checkpoint, dir=str(tmp_path / "d"))
    )
    again = train(other, resume=str(folder / "best"), DISTPERF_CACHE=str(tmp_path / "cache"))
    assert min(again.losses()) == best + 1
