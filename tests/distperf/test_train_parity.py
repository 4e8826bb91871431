"""The whole program, as real ranks: every layout trains as one process does, every restart goes on exactly."""

from __future__ import annotations

import dataclasses
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from train_program import Ranks, data_spec, make_spec, train, training

from distperf.checkpoint.manifest import list_checkpoints
from distperf.recipe.runspec import CheckpointSpec

pytestmark = pytest.mark.slow


@cache
def one_process_losses() -> dict[int, float]:
    with TemporaryDirectory() as tmp:
        return train(make_spec(Path(tmp))).losses()


def saving(folder: Path, every: int, *, keep: int = 5) -> CheckpointSpec:
    return CheckpointSpec(every_steps=every, save_last=False, keep=keep, dir=str(folder))


def close_to(expected: dict[int, float]) -> dict[int, object]:
    return {step: pytest.approx(loss, rel=1e-5) for step, loss in expected.items()}


@pytest.mark.parametrize(
    ("world", "zero", "accumulation"),
    [(1, 0, 2), (2, 0, 2), (2, 1, 1), (2, 2, 1), (2, 3, 2), (4, 2, 3), (4, 3, 1)],
)
def test_every_layout_has_the_losses_of_one_process(tmp_path, world, zero, accumulation):
    """Losses of 20 fp32 steps within 1e-5 relative, for any number of ranks, ZeRO stage and accumulation."""
    ranks = train(make_spec(tmp_path, world=world, zero=zero, accumulation=accumulation))
    assert ranks.losses() == close_to(one_process_losses())


def test_masked_targets_do_not_change_what_a_token_weighs_e07(tmp_path):
    """E07: with unevenly many targets in micro-batches and ranks, the token mean is that of one process."""
    text = tmp_path / "documents"
    text.mkdir()
    for number in range(40):
        (text / f"{number}.txt").write_text("ab" * number + "." if number % 3 else "x")
    data = data_spec(text=(f"{text}/*.txt",))
    cache_dir = {"DISTPERF_CACHE": str(tmp_path / "cache")}
    model = dataclasses.replace(make_spec(tmp_path).model, vocab=257)
    one = train(make_spec(tmp_path, steps=6, data=data, model=model), **cache_dir)
    two = train(
        make_spec(tmp_path, steps=6, data=data, model=model, world=2, zero=1, accumulation=2), **cache_dir
    )
    assert two.losses() == close_to(one.losses())
    tokens = [record["tokens"] for record in one.ranks[0].of("metrics")]
    assert len(set(tokens)) > 1, "the case is uneven"
    assert tokens == [record["tokens"] for record in two.ranks[0].of("metrics")]


@pytest.mark.parametrize(("zero", "precision"), [(2, "fp32"), (1, "bf16"), (3, "bf16")])
def test_a_killed_run_goes_on_with_the_same_losses_g01_g08(tmp_path, zero, precision):
    """kill -9 once step 10 is saved, restart: losses and rates are to the last bit those of the run left alone."""
    layout = {"world": 2, "zero": zero, "precision": precision}
    whole = train(make_spec(tmp_path, **layout))
    spec = make_spec(tmp_path, **layout, checkpoint=saving(tmp_path / "c", 5))
    with training(spec) as first:
        first.wait_until(
            lambda: any(r["event"] == "checkpoint" and r["step"] >= 10 for r in first.ranks[0].of("event"))
        )
        first.kill()
    second = train(spec, attempt=2)
    (resumed,) = [r for r in second.ranks[0].of("event") if r["event"] == "resume"]
    assert resumed["step"] >= 10
    expected = [r for r in whole.ranks[0].of("metrics") if r["step"] > resumed["step"]]
    for got, wanted in zip(second.ranks[0].of("metrics"), expected, strict=True):
        same = ("step", "loss", "lr", "grad_norm", "tokens", "tokens_seen")
        assert [got[key] for key in same] == [wanted[key] for key in same]


def test_twenty_steps_after_a_resume_are_those_of_the_run_left_alone(tmp_path):
    """From the checkpoint of step 5 of 26: losses, norms and rates of fp32 to the last bit."""
    spec = make_spec(
        tmp_path, world=2, zero=2, accumulation=2, steps=26, checkpoint=saving(tmp_path / "c", 5, keep=9)
    )
    whole = train(spec)
    other = dataclasses.replace(spec, run_id="tiny-2", checkpoint=saving(tmp_path / "other", 0))
    resumed = train(other, resume=str(tmp_path / "c" / "step-00000005"))
    same = ("step", "loss", "lr", "grad_norm", "tokens", "tokens_seen")
    wanted = [[r[key] for key in same] for r in whole.ranks[0].of("metrics") if r["step"] > 5]
    assert [[r[key] for key in same] for r in resumed.ranks[0].of("metrics")] == wanted
    assert len(wanted) == 21


@pytest.fixture(scope="module")
def saved_by_four(tmp_path_factory) -> tuple[Path, Ranks]:
    """Checkpoints after steps 4 and 6 of 6, by 4 ranks with ZeRO-2, and what the ranks reported."""
    folder = tmp_path_factory.mktemp("saved") / "checkpoints"
    spec = make_spec(folder, world=4, zero=2, steps=6, checkpoint=CheckpointSpec(4, True, 0, str(folder)))
    return folder, train(spec)


def test_a_final_save_ends_the_run_promptly_g17(saved_by_four):
    """G17: `save` is collective by design: all ranks leave together with 0, and the last step is saved once."""
    folder, ranks = saved_by_four
    assert [info.step for info in list_checkpoints(folder) if info.complete] == [4, 6]
    assert all(rank.of("done") for rank in ranks.ranks)


@pytest.mark.parametrize(("world", "zero"), [(1, 0), (2, 3), (3, 1)])
def test_a_new_run_goes_on_from_a_checkpoint_of_any_layout_g04(tmp_path, saved_by_four, world, zero):
    """G04: saved on 4 ranks with ZeRO-2; on another layout the run starts at step 5 with the same losses."""
    folder, ranks = saved_by_four
    spec = make_spec(tmp_path, world=world, zero=zero, steps=6, run_id="tiny-2")
    resumed = train(spec, resume=str(folder / "step-00000004"))
    assert resumed.losses() == close_to({step: loss for step, loss in ranks.losses().items() if step > 4})


def test_a_fresh_run_does_not_touch_another_runs_checkpoints(saved_by_four):
    """Refused with the run's name and the ways out, exit code 1, nothing written."""
    folder, _ = saved_by_four
    spec = make_spec(folder, run_id="tiny-4", checkpoint=saving(folder, 10))
    with training(spec) as ranks:
        assert ranks.wait() == [1]
    assert "run tiny-1 up to step 6" in ranks.output
    assert "Traceback" not in ranks.output
    assert ranks.ranks[0].of("error")[0]["type"] == "CheckpointError"
    assert [info.by("tiny-1") for info in list_checkpoints(folder)] == [True, True]
