"""Which checkpoint to start from, which to remove, when to refuse."""

from __future__ import annotations

from pathlib import Path

import pytest

from distperf.checkpoint.choose import (
    Retention,
    best,
    choose_removals,
    choose_start,
    newest,
    refuse_other_model,
)
from distperf.checkpoint.manifest import MANIFEST_SCHEMA, CheckpointInfo, Manifest, step_name
from distperf.errors import CheckpointError, CheckpointMissing

LLAMA = {"family": "llama", "layers": 2, "hidden": 8, "rope_theta": 1e4}


def info(
    step: int, run_id: str | None = "mine", problem: str | None = None, **metrics: float
) -> CheckpointInfo:
    manifest = run_id and Manifest(
        run_id,
        "n",
        1,
        1,
        LLAMA,
        "fp32",
        0,
        {},
        MANIFEST_SCHEMA,
        step,
        step,
        0,
        0,
        None,
        {},
        "",
        1,
        "",
        "",
        "",
        None,
        metrics,
    )
    return CheckpointInfo(Path("/c") / step_name(step), step, manifest or None, problem)


def start(found, *, resume="", asked=(), attempt=1):
    return choose_start("/c", found, "mine", resume, asked, attempt)


def test_a_fresh_run_starts_from_nothing():
    """No checkpoints, none asked for: step 0."""
    assert start([]).checkpoint is None


def test_a_restart_goes_on_from_the_newest_complete_one_g01():
    """G01: a damaged newest one is passed over, and said."""
    found = [info(10), info(20), info(30, problem="shard cut")]
    chosen = start(found, attempt=2)
    assert (chosen.step, [p.step for p in chosen.passed_over]) == (20, [30])


def test_a_step_folder_without_readable_manifest_is_passed_over():
    """It names no run; beside ours it is taken for ours, and said."""
    chosen = start([info(10), info(20, run_id=None, problem="no manifest")], attempt=2)
    assert (chosen.step, [p.step for p in chosen.passed_over]) == (10, [20])


def test_all_damaged_is_refused_with_every_reason():
    """Starting over without a word would throw the training away."""
    with pytest.raises(CheckpointMissing, match=r"(?s)cut a.*cut b"):
        start([info(1, problem="cut a"), info(2, problem="cut b")], attempt=2)


def test_resume_wins_on_the_first_attempt_and_own_progress_afterwards():
    """`resume` is where a run begins; a restart must not throw away what the run did since."""
    own, asked = [info(60)], [info(50)]
    assert start(own, resume="/old", asked=asked).step == 50
    assert start(own, resume="/old", asked=asked, attempt=2).step == 60
    assert start([], resume="/old", asked=asked, attempt=2).step == 50


def test_resume_from_a_folder_without_a_complete_one_is_refused():
    """Asked for a checkpoint, got none: never a fresh start."""
    with pytest.raises(CheckpointMissing, match="/old"):
        start([], resume="/old", asked=[])


def test_a_fresh_start_among_another_runs_checkpoints_is_refused():
    """The message names the run and the two ways out."""
    with pytest.raises(CheckpointError, match=r"(?s)theirs up to step 40.*checkpoint\.dir.*--resume /c"):
        start([info(40, "theirs")])


def test_continuing_another_runs_newest_in_its_folder_is_allowed():
    """Nothing of the other run lies ahead, so nothing can be overwritten."""
    found = [info(30, "theirs"), info(40, "theirs")]
    assert start(found, resume="/c", asked=found).step == 40
    with pytest.raises(CheckpointError, match="theirs up to step 40"):
        start(found, resume="/c/step-00000030", asked=found[:1])


def test_retention_counts_by_number_g10():
    """G10: 9900 and 10000 stay of 900, 1000, 9900, 10000 with keep 2."""
    found = [info(step) for step in (900, 1000, 9900, 10000)]
    assert [i.step for i in choose_removals(found, "mine", Retention(2), just_written=10000)] == [900, 1000]


def test_retention_leaves_other_runs_damaged_ones_and_the_new_one():
    """Only complete ones of this run count and go; the one just written never does."""
    found = [info(1, "theirs"), info(2, problem="cut"), info(3), info(4), info(5)]
    assert [i.step for i in choose_removals(found, "mine", Retention(1), just_written=4)] == [3]
    assert choose_removals(found, "mine", Retention(0), just_written=5) == []


def test_every_so_many_steps_one_stays_for_good():
    """Beside the newest two, those whose step 1000 divides."""
    found = [info(step) for step in (1000, 1500, 2000, 2500, 3000, 3500)]
    goes = choose_removals(found, "mine", Retention(2, every=1000), just_written=3500)
    assert [i.step for i in goes] == [1500, 2500]


def test_the_best_by_a_metric_stays():
    """The lowest value of this run's complete ones, the earliest of equals; one without a value is never the best."""
    found = [
        info(10, eval_loss=2.5),
        info(20, eval_loss=2.1),
        info(30, eval_loss=2.1),
        info(40, eval_loss=2.3),
        info(50, loss=0.1),
        info(45, run_id="other", eval_loss=0.5),
        info(60, problem="cut", eval_loss=1.0),
        info(70, eval_loss=0.7),
    ]
    by_eval, by_loss = Retention(1, metric="eval_loss"), Retention(1, metric="loss")
    assert [i.step for i in choose_removals(found, "mine", by_eval, just_written=50)] == [10, 30, 40]
    for retention, step in ((by_eval, 20), (by_loss, 50)):
        chosen = best(found, "mine", retention, just_written=50)
        assert chosen is not None
        assert chosen.step == step
    assert best(found, "mine", Retention(1), just_written=50) is None


def test_what_was_passed_over_does_not_count_as_kept():
    """Steps 90 and 100 were found damaged when read, so the run began anew after 50: 50 and 60 are the newest two."""
    found = [info(step) for step in (40, 50, 60, 90, 100)]
    assert [i.step for i in choose_removals(found, "mine", Retention(2), just_written=60)] == [40]


def test_another_models_checkpoint_is_refused_naming_both():
    """Both values of each field that differs; fields without influence on shapes may differ."""
    refuse_other_model(info(1), {**LLAMA, "rope_theta": 5e5})
    with pytest.raises(CheckpointError, match="layers 2 there, 3 in the recipe"):
        refuse_other_model(info(1), {**LLAMA, "layers": 3})


def test_newest_prefers_the_last_of_the_sorted():
    """The list is sorted by step, so the last complete one is the newest."""
    assert newest([info(1), info(2)], "/c").step == 2
