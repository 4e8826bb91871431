"""SIGTERM, on real ranks: all of them end after one and the same step, which is kept."""

from __future__ import annotations

import os
import random
import signal
import time

import pytest
from train_program import make_spec, train, training

from distperf.checkpoint.manifest import list_checkpoints
from distperf.recipe.runspec import CheckpointSpec

pytestmark = pytest.mark.slow
STEPS = 60


def stopped(spec, at, *victims, **options):
    """Train, SIGTERM some ranks once all of them have finished step `at`; every rank's last step."""
    with training(spec, **options) as ranks:
        ranks.wait_until(lambda: all(len(rank.of("progress")) >= at for rank in ranks.ranks))
        for victim in victims:
            ranks.ranks[victim].process.terminate()
        codes = ranks.wait()
        assert codes == [143] * spec.world_size, (codes, ranks.output)
        assert not any(rank.of("done") for rank in ranks.ranks)
        return ranks, {rank.of("progress")[-1]["step"] for rank in ranks.ranks}


def test_one_ranks_signal_stops_all_at_one_step_which_a_resume_goes_on_from_d14(tmp_path):
    """D14: of four ranks one is told. All end after the same step with its checkpoint, at any step; the next attempt
    goes on from there, and its losses are those of an undisturbed run to the last bit.
    """
    checkpoint = CheckpointSpec(every_steps=1000, save_last=False, keep=5, dir=str(tmp_path / "kept"))
    spec = make_spec(tmp_path, world=4, zero=2, steps=STEPS, checkpoint=checkpoint)
    one, last = stopped(spec, random.randint(2, 12), 2)
    assert len(last) == 1
    found = list_checkpoints(tmp_path / "kept")
    assert [(info.step, info.complete) for info in found] == [(*last, True)]
    assert [record["event"] for record in one.ranks[0].of("event")] == ["checkpoint", "stop"]
    rest = train(spec, attempt=2).losses()
    assert min(rest) == last.pop() + 1
    undisturbed = make_spec(tmp_path, world=4, zero=2, steps=STEPS)
    assert {**one.losses(), **rest} == train(undisturbed).losses()


def test_nothing_is_saved_where_checkpoints_are_off_or_one_is_there(tmp_path):
    """every_steps 1: the stop finds its step saved. Off: no folder is made."""
    every = CheckpointSpec(every_steps=1, save_last=False, keep=0, dir=str(tmp_path / "kept"))
    ranks, last = stopped(make_spec(tmp_path, steps=STEPS, checkpoint=every), 3, 0)
    saved = [record["step"] for record in ranks.ranks[0].of("event") if record["event"] == "checkpoint"]
    assert saved == list(range(1, last.pop() + 1))
    stopped(make_spec(tmp_path, steps=STEPS), 3, 0)
    assert not (tmp_path / "checkpoints").exists()


def test_before_training_there_is_nothing_to_wait_for(tmp_path):
    """A rank that still waits for another one to come ends at once."""
    with training(make_spec(tmp_path, world=2, zero=1)) as ranks:
        os.kill(ranks.ranks[1].process.pid, signal.SIGSTOP)
        ranks.wait_until(lambda: ranks.ranks[0].of("phase"))
        told = time.monotonic()
        ranks.ranks[0].process.terminate()
        ranks.ranks[0].process.join(5)
        assert ranks.ranks[0].process.exitcode == -signal.SIGTERM
        assert time.monotonic() - told < 2
