import json
import subprocess
import sys

import pytest
from integration.launches import RECIPE

pytestmark = pytest.mark.slow


def check(folder, *args):
    """Exit code, stdout and stderr of `distperf check` on this machine."""
    command = [sys.executable, "-m", "launcher", "check", *args]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=100, check=False)
    return done.returncode, done.stdout, done.stderr


def test_this_machine(tmp_path):
    """Without a hostfile this machine is the host; ranks would meet over loopback, and nothing is left behind."""
    _, out, _ = check(tmp_path, "--json")
    (host,) = json.loads(out)["hosts"]
    found = {one["name"]: one for one in host["checks"]}
    assert host["host"] == "localhost"
    assert found["python"]["found"].startswith(sys.executable)
    assert found["address"]["found"] == "127.0.0.1 on lo"
    assert all(found[name]["ok"] for name in ("reach", "workdir", "torch", "distperf", "disk_temp", "clock"))
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written(tmp_path):
    """Exit code 4, naming the folder and what to do."""
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    code, out, _ = check(tmp_path, "recipe.yaml", "--set", "checkpoint.dir=/proc/nowhere")
    assert code == 4
    assert "cannot write to checkpoint.dir /proc/nowhere" in out
    assert out.splitlines()[-1] == "1 of 1 host cannot take part: localhost"


def test_a_wrong_recipe_is_told_before_anything_is_asked(tmp_path):
    """Exit code 2 and no table."""
    (tmp_path / "recipe.yaml").write_text(RECIPE.replace("precision: fp32", "precision: fp33"))
    code, out, err = check(tmp_path, "recipe.yaml")
    assert (code, out) == (2, "")
    assert "fp33" in err
