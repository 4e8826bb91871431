"""`distperf bench` on this machine: real ranks measure, and the plan reckons with it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from integration.launches import RECIPE

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture
def distperf(tmp_path, monkeypatch):
    """distperf(...) -> exit code, stdout and stderr of a command in an empty folder, with a cache of its own."""
    monkeypatch.setenv("DISTPERF_CACHE", str(tmp_path / "cache"))
    (tmp_path / "r.yaml").write_text(RECIPE)

    def run(*args):
        command = [sys.executable, "-m", "launcher", *args]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=250, check=False)
        return done.returncode, done.stdout, done.stderr

    return run


def test_all_parts_and_the_plan_of_this_machine(distperf, tmp_path):
    """Every kind of number is there and above zero, nothing is left on the drive, and a step has a planned time."""
    (tmp_path / "drive").mkdir()
    code, out, err = distperf("bench", "--nproc", "2", "--path", "drive", "--json")
    assert code == 0, err
    value = json.loads(out)
    names = {(one["what"], one["where"]) for one in value["measures"]}
    assert {("matmul", "fp32"), ("layer", "bf16"), ("loss", "fp32"), ("update", ""), ("copy", "")} <= names
    assert {(what, "host") for what in ("reduce", "gather", "all_reduce", "all_gather", "link")} <= names
    assert {(what, "host") for what in ("tensor", "ulysses", "ring")} <= names
    assert {("read", "drive"), ("write", "drive"), ("offload", "")} <= names
    assert all(number > 0 for one in value["measures"] for _, number in one["points"])
    assert value["outliers"] == []
    assert list((tmp_path / "drive").iterdir()) == []
    plan = json.loads(distperf("plan", "r.yaml", "--nproc", "2", "--json")[1])
    assert plan["step_s"] > 0
    assert plan["step_source"].startswith("measured: distperf bench of 1 host x 2 ranks")


def test_a_drive_that_is_not_there(distperf):
    """Exit code 4, as at a launch: the folder and the host are named, and nothing is measured."""
    code, out, err = distperf("bench", "disk", "--nproc", "1", "--path", "nowhere")
    assert (code, out) == (4, "")
    assert "nowhere" in err
    assert "localhost" in err


def test_what_is_no_part(distperf):
    """Exit code 2 before anything is started."""
    assert distperf("bench", "network")[0] == 2
    code, _, err = distperf("bench", "disk")
    assert code == 2
    assert "--path" in err
