"""Checkpoints in memory through `distperf launch`: what a killed rank costs, and that nothing stays on the node."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from integration.launches import RECIPE, metrics, start

pytestmark = pytest.mark.slow
EVERY = 3


@pytest.fixture
def place(tmp_path):
    """A folder with a recipe that keeps checkpoints in memory and none on disk, and the folder that is the memory."""
    memory = tmp_path / "memory"
    memory.mkdir()
    recipe = RECIPE.replace(
        "checkpoint: {every_steps: 5, dir: checkpoints}",
        f"checkpoint: {{every_steps: 0, save_last: false, memory: {{every_steps: {EVERY}, dir: {memory}}}}}",
    )
    assert recipe != RECIPE
    (tmp_path / "recipe.yaml").write_text(recipe)
    return tmp_path


def resumes(run: Path) -> list[dict]:
    """What ranks have told of where they went on."""
    records = [line["record"] for line in metrics(run, "events.jsonl") if line["event"] == "RankReported"]
    return [record for record in records if record.get("event") == "resume"]


def test_a_killed_rank_goes_on_from_memory_and_leaves_nothing(place):
    """SIGKILL of a rank after step 8 of 400: the next attempt goes on from memory, EVERY steps earlier at most and
    those of a copy under way, without a checkpoint on disk; losses are an undisturbed run's, to the last bit.
    """
    flags = ("recipe.yaml", "--nproc", "2", "--set", "train.steps=400")  # more than pass by before it is seen
    run = start(place, *flags)
    status = run.until(lambda s: s["metrics"].get("step", 0) >= 8)
    folder = next((place / "memory").glob("distperf-memory-*"))
    assert run.run.name in folder.name
    os.kill(status["ranks"][1]["pid"], signal.SIGKILL)
    out, err = run.end()
    assert run.process.returncode == 0, err
    (resumed,) = resumes(run.run)
    assert f"resumed from memory, step {resumed['step']}" in out + err
    assert resumed["step"] >= 8 - 2 * EVERY
    assert not list((place / "memory").iterdir())
    assert not (run.run / "checkpoints").exists()
    undisturbed = start(place, *flags)
    _, err = undisturbed.end()
    assert undisturbed.process.returncode == 0, err
    assert run.losses() == undisturbed.losses()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=["stopped", "controller killed"])
def test_nothing_stays_however_a_run_ends(place, number):
    """Ctrl-C, and SIGKILL of the controller: the memory is given back."""
    run = start(place, "recipe.yaml", "--nproc", "2", "--set", "train.steps=4000")
    run.until(lambda s: s["metrics"].get("step", 0) >= EVERY + 1)
    assert list((place / "memory").iterdir())
    run.process.send_signal(number)
    run.end()
    deadline = time.monotonic() + 20
    while list((place / "memory").iterdir()) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not list((place / "memory").iterdir())


def test_no_such_folder_is_told_before_any_rank_starts(place):
    """Pre-flight, exit code 4, with the key."""
    run = start(place, "recipe.yaml", "--nproc", "2", "--set", f"checkpoint.memory.dir={place}/nowhere")
    _, err = run.end()
    assert run.process.returncode == 4
    assert f"checkpoint.memory.dir {place}/nowhere is no folder there" in err
