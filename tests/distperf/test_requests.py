"""What the agent asks of a rank by its FIFO."""

from __future__ import annotations

import json
import os
import time

import pytest
from train_program import make_spec, training

from distperf.checkpoint.manifest import list_checkpoints
from distperf.recipe.runspec import CheckpointSpec
from distperf.requests import ProfileWanted, listen
from launcher.agent.stacks import ask


def soon(holds) -> bool:
    deadline = time.monotonic() + 20
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def test_requests_are_taken_once(tmp_path, monkeypatch):
    """Several in one look, unknown ones passed over; the flight recorder's answer is a file."""
    stacks = tmp_path / "rank.stacks"
    monkeypatch.setenv("DISTPERF_STACK_FILE", str(stacks))
    monkeypatch.setenv("TORCH_FR_BUFFER_SIZE", "2000")
    requests = listen()
    assert not requests.take_save()
    assert ask(str(stacks), "from the future")
    assert ask(str(stacks), "save")
    assert ask(str(stacks), "profile 1t1 3 8")
    assert ask(str(stacks), "profile nonsense")
    assert ask(str(stacks), "?")
    assert soon((tmp_path / "rank.stacks.collectives").exists)
    assert isinstance(json.loads((tmp_path / "rank.stacks.collectives").read_text()), list)
    assert requests.take_save()
    assert not requests.take_save()
    assert requests.take_profile() == ProfileWanted("1t1", 3, 8)
    assert requests.take_profile() is None


def test_nobody_to_ask(tmp_path, monkeypatch):
    """Without an agent no thread is started; a rank that takes no requests is told from one that does."""
    monkeypatch.delenv("DISTPERF_STACK_FILE", raising=False)
    assert not listen().take_save()
    assert not ask(str(tmp_path / "rank.stacks"), "save")
    os.mkfifo(tmp_path / "rank.stacks.ask")
    assert not ask(str(tmp_path / "rank.stacks"), "save")


@pytest.mark.slow
def test_one_rank_is_asked_and_all_save_after_the_same_step(tmp_path):
    """In the middle of a run that saves only at its end; training goes on, and twice asked is saved twice."""
    spec = make_spec(
        tmp_path, world=2, zero=1, steps=2000,
        checkpoint=CheckpointSpec(every_steps=0, save_last=True, keep=5, dir=str(tmp_path / "kept")),
    )  # fmt: skip
    stacks = tmp_path / "rank.stacks"  # of whichever rank comes first
    with training(spec, DISTPERF_STACK_FILE=str(stacks)) as ranks:
        lead = ranks.ranks[0]
        for saved in (1, 2):
            ranks.wait_until(lambda: len(lead.of("progress")) > 3)
            assert ask(str(stacks), "save")
            ranks.wait_until(
                lambda saved=saved: len([r for r in lead.of("event") if r["event"] == "checkpoint"]) == saved
            )
        first, second = [record["step"] for record in lead.of("event")]
        assert first < second
        ranks.wait_until(lambda: lead.of("progress")[-1]["step"] > second)
    found = list_checkpoints(tmp_path / "kept")
    assert [(info.step, info.complete) for info in found] == [(first, True), (second, True)]
