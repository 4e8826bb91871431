"""distperf ckpt: a process, its exit code and output, over checkpoints made without torch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from distperf.checkpoint.blocks import BLOCK_BYTES, HASH
from distperf.checkpoint.index import StoredPiece, StoredTensor, write_index
from distperf.checkpoint.manifest import MANIFEST_SCHEMA, Manifest, step_name, write_manifest
from distperf.checkpoint.writing import HashingWriter

SHARD = "__0_0.distcp"


def make(folder: Path, step: int, run_id: str = "run-a", **metrics: float) -> Path:
    """A checkpoint of two tensors of 8 bytes."""
    path = folder / step_name(step)
    path.mkdir(parents=True)
    pieces = [StoredPiece((0,), (2,), SHARD, start, 8, start, 8) for start in (0, 8)]
    index = {
        f"model.{name}": StoredTensor((2,), "float32", (p,)) for name, p in zip("ab", pieces, strict=True)
    }
    files = {}
    for name, text in ((SHARD, bytes(16)), ("index.json", write_index(index))):
        with HashingWriter(path / name) as file:
            file.write(text)
            files[name] = file.finish()
    origin = (run_id, "n", 1, 1, {}, "fp32", 0, {})
    rest = (MANIFEST_SCHEMA, step, step, 0, 0, None, files, HASH, BLOCK_BYTES, "", "", "", None, metrics)
    write_manifest(path, Manifest(*origin, *rest))
    return path


def ckpt(*args: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "launcher", "ckpt", *map(str, args)]
    env = {**os.environ, "PYTHONPATH": os.getcwd()}
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, env=env)


@pytest.fixture
def run(tmp_path) -> Path:
    """A run's folder with the checkpoints of steps 10, 20 and 30."""
    for step in (10, 20, 30):
        make(tmp_path / "checkpoints", step)
    return tmp_path


def flip(file: Path) -> None:
    text = file.read_bytes()
    file.write_bytes(text[:-1] + bytes([text[-1] ^ 1]))


def test_verify_names_every_damaged_file_and_the_tensors_in_it(run):
    """All checkpoints of a run at once; one alone; exit code 1 where something is damaged, 0 where all is whole."""
    assert ckpt("verify", run).returncode == 0
    flip(run / "checkpoints" / step_name(20) / SHARD)
    flip(run / "checkpoints" / step_name(30) / "manifest.json")
    done = ckpt("verify", run)
    assert done.returncode == 1
    first, second, damaged, third, manifest = done.stdout.splitlines()
    assert first.endswith("step-00000010: whole")
    assert second.endswith("step-00000020: 1 damaged file")
    assert damaged.endswith(
        f"{SHARD}: bytes 0 to 16 are not what was written; it holds values of model.a, model.b"
    )
    assert third.endswith("step-00000030: 1 damaged file")
    assert "manifest.json: not what was written" in manifest
    rows = json.loads(ckpt("verify", run, "--json").stdout)["checkpoints"]
    assert [row["whole"] for row in rows] == [True, False, False]
    assert rows[1]["damaged"][0]["tensors"] == ["model.a", "model.b"]
    assert ckpt("verify", run / "checkpoints" / step_name(10)).returncode == 0


def test_where_there_is_no_checkpoint_verify_says_so(tmp_path):
    """No traceback, and not a success."""
    done = ckpt("verify", tmp_path)
    assert done.returncode == 1
    assert "neither a checkpoint nor a folder that holds some" in done.stderr
    assert "Traceback" not in done.stderr


def test_prune_keeps_the_newest_of_each_run_and_those_for_good(run):
    """--dry-run names them only; another run's in the same folder count for themselves."""
    make(run / "checkpoints", 15, "run-b")
    flags = ("--keep", 1, "--keep-every", 20)
    for extra in (("--dry-run",), ()):
        done = ckpt("prune", run, *flags, *extra)
        assert (done.returncode, done.stderr) == (0, "")
        assert [Path(line).name for line in done.stdout.splitlines()] == ["step-00000010"]
    left = sorted(path.name for path in (run / "checkpoints").iterdir())
    assert left == ["step-00000015", "step-00000020", "step-00000030"]


def test_the_best_is_marked_and_not_pruned(tmp_path):
    """`best` points to it: ls says so, with what its step came to, and prune leaves it."""
    for step, loss in ((10, 2.5), (20, 2.125), (30, 2.25), (40, 2.5)):
        make(tmp_path, step, eval_loss=loss)
    (tmp_path / "best").symlink_to("step-00000020")
    lines = ckpt("ls", tmp_path).stdout.splitlines()
    assert "complete, eval loss 2.1250, the best" in lines[1]
    assert sum("the best" in line for line in lines) == 1
    rows = json.loads(ckpt("ls", tmp_path, "--json").stdout)["checkpoints"]
    assert [(row["best"], row["metrics"]["eval_loss"]) for row in rows][1:3] == [(True, 2.125), (False, 2.25)]
    gone = ckpt("prune", tmp_path, "--keep", "1").stdout.split()
    assert [Path(path).name for path in gone] == ["step-00000010", "step-00000030"]


def test_prune_removes_nothing_where_the_newest_is_damaged(run):
    """Never the only good one: the newest is read before anything goes."""
    flip(run / "checkpoints" / step_name(30) / SHARD)
    done = ckpt("prune", run, "--keep", 1)
    assert done.returncode == 1
    assert "run run-a: nothing was removed, as its newest is damaged" in done.stderr
    assert len(list((run / "checkpoints").iterdir())) == 3


def test_show_and_ls_tell_sizes_not_hashes(run):
    """What a person reads is short; JSON has all."""
    shown = ckpt("show", run).stdout
    assert f'"{SHARD}": 16' in shown
    blocks = json.loads(ckpt("show", run, "--json").stdout)["files"][SHARD]["blocks"]
    assert len(blocks[0]) == 32
    assert blocks[0] not in shown
    assert "step       30" in ckpt("ls", run).stdout
