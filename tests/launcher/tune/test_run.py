"""`distperf tune` as a user runs it: real trials through the launcher."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

# Of micro-batches of 16 the logits alone take 256 MiB, and their gradients as much; of 1, a sixteenth.
RECIPE = """
name: tuned
model: {family: llama, layers: 1, hidden: 32, heads: 4, ffn: 64, vocab: 8192}
data: {synthetic: true, seq_len: 512}
train: {steps: 100, global_batch: 16, micro_batch: 1}
precision: fp32
hardware: {device: cpu, memory_gib: 64}
"""
LIMIT = 640 << 20
CGROUP = Path("/sys/fs/cgroup/memory")


def tune(folder, *args, group=None):
    """Exit code, the JSON, and what was said; in a cgroup if one is given."""
    command = [
        sys.executable,
        "-m",
        "launcher",
        "tune",
        "r.yaml",
        "--nproc",
        "1",
        "--steps",
        "3",
        "--json",
        *args,
    ]
    if group is not None:
        command = ["sh", "-c", f'echo $$ > {group}/cgroup.procs; exec "$@"', "sh", *command]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=250, check=False)
    return done.returncode, json.loads(done.stdout or "null"), done.stderr


@pytest.fixture
def limited():
    """A cgroup of our own with little memory."""
    if not os.access(CGROUP / "memory.oom_control", os.W_OK):
        pytest.skip("needs root and a cgroup v1 memory controller")
    group = CGROUP / f"distperf-tune-{os.getpid()}"
    group.mkdir()
    (group / "memory.limit_in_bytes").write_text(str(LIMIT))
    yield group
    group.rmdir()


def test_a_trial_without_room_is_survived_and_nothing_is_done_twice(tmp_path, limited):
    """The kernel kills the second trial, which is written down; the winner is a recipe that can be planned; started
    again, only what is new is tried.
    """
    (tmp_path / "r.yaml").write_text(RECIPE)
    code, value, told = tune(tmp_path, "--trials", "2", group=limited)
    assert code == 0, told
    verdicts = [trial["outcome"]["verdict"] for trial in value["trials"]]
    assert verdicts == ["ok", "out of memory"], told
    assert value["best"] == 0
    planned = subprocess.run(
        [sys.executable, "-m", "launcher", "plan", value["recipe"], "--nproc", "1", "--json"],
        cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert json.loads(planned.stdout)["batch"]["micro"] == 1
    runs = sorted(path.name for path in (tmp_path / "tune/r/runs").iterdir())
    code, again, told = tune(tmp_path, "--trials", "2")
    assert (code, again["trials"]) == (0, value["trials"])
    assert told.count("done before") == 2
    assert sorted(path.name for path in (tmp_path / "tune/r/runs").iterdir()) == runs


def test_what_cannot_be_tuned(tmp_path):
    """Exit code 2, nothing is started: a script, and a folder of another tuning."""
    (tmp_path / "r.yaml").write_text("script: {path: train.py}\n")
    code, value, told = tune(tmp_path)
    assert (code, value) == (2, None)
    assert "script" in told
