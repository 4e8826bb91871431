"""A disk that fills up while a checkpoint is written: a real, small one."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from train_program import make_spec, training

from distperf.checkpoint.manifest import list_checkpoints
from distperf.checkpoint.verify import verify
from distperf.recipe.runspec import CheckpointSpec

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="mounting a file system needs root"),
]


@pytest.fixture
def disk(tmp_path) -> Iterator[Path]:
    """2 MiB, of which a checkpoint of the test's model takes a third."""
    path = tmp_path / "disk"
    path.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", path], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"cannot mount a tmpfs: {mounted.stderr}")
    yield path
    subprocess.run(["umount", path], check=True)


def fill(disk: Path, leaving: int) -> Path:
    """A file that leaves this many bytes."""
    other = disk / "other"
    other.write_bytes(bytes(shutil.disk_usage(disk).free - leaving))
    return other


@pytest.mark.parametrize("on_error", ["continue", "stop"])
def test_a_full_disk_leaves_the_older_checkpoint_and_the_run_as_the_recipe_says_g13(disk, tmp_path, on_error):
    """G13: something else fills the disk after step 5 is saved. The partial ones of later steps go, step 5 stays whole,
    and the run trains to its end saying each time why, or stops with that for an answer.
    """
    checkpoint = CheckpointSpec(5, False, 3, str(disk / "c"), on_error=on_error)
    spec = make_spec(tmp_path, world=2, zero=1, steps=303, checkpoint=checkpoint)
    with training(spec) as ranks:
        ranks.wait_until(lambda: events(ranks, "checkpoint"))
        fill(disk, leaving=8192)
        ranks.wait_until(lambda: events(ranks, "checkpoint_failed") or ranks.ranks[0].of("error"))
        codes = ranks.wait()
    kept = list_checkpoints(disk / "c")
    assert [verify(info.path) for info in kept] == [[]] * len(kept) != []
    assert not list((disk / "c").glob(".step-*")), "nothing half written is left"
    if on_error == "continue":
        assert codes == [0, 0]
        said = [event["problem"] for event in events(ranks, "checkpoint_failed")]
        assert all("free" in problem or "No space left" in problem for problem in said)
    else:
        assert codes == [1, 1]
        assert {rank.of("error")[0]["type"] for rank in ranks.ranks} == {"CheckpointError"}
        assert len({rank.of("progress")[-1]["step"] for rank in ranks.ranks}) == 1, (
            "after one and the same step"
        )


def events(ranks, name: str) -> list[dict]:
    return [record for record in ranks.ranks[0].of("event") if record["event"] == name]
