"""launch.setup as a user sees it: here and over SSH, with forked ranks, failing, and on a host that comes back."""

from __future__ import annotations

import json
import os
import sys

import pytest
from integration.launches import distperf, gone, start

pytestmark = pytest.mark.slow

SHOW = """
import json, os, sys, time
if os.environ.get("WITH_TORCH"):
    import torch
keep = {k: os.environ.get(k) for k in ("ADDED", "KEPT", "OMP_NUM_THREADS", "RANK")}
keep["forked"] = "nursery.py" in open("/proc/self/cmdline").read()
with open(f"out-{os.environ['RANK']}.json", "w") as out:
    json.dump({**keep, "python": sys.executable, "cwd": os.getcwd()}, out)
while os.path.exists("wait") and os.environ["DISTPERF_ATTEMPT"] == "1":
    time.sleep(0.05)
"""
LINES = [
    "source env/bin/activate",
    "export ADDED=$'x\\ny' KEPT=\"$KEPT-after\" OMP_NUM_THREADS=3",
    "cat",
    "cd /; echo $SHOWN; echo here >> $OLDPWD/ran.txt",
]


def recipe(folder, lines=LINES, **launch):
    (folder / "show.py").write_text(SHOW)
    (folder / "env" / "bin").mkdir(parents=True)
    (folder / "env" / "bin" / "python3").symlink_to(sys.executable)
    (folder / "env" / "bin" / "activate").write_text(f"export PATH={folder}/env/bin:$PATH\n")
    env = {"KEPT": "before", "PYTHONPATH": ":".join(p for p in sys.path if p.endswith("site-packages"))}
    launch = {"setup": list(lines), "env": {**env, **launch.pop("env", {})}, **launch}
    (folder / "r.yaml").write_text(json.dumps({"name": "s", "script": {"path": "show.py"}, "launch": launch}))


def assert_seen(folder, ranks, **more):
    for rank in range(ranks):
        seen = json.loads((folder / f"out-{rank}.json").read_text())
        wanted = {
            "ADDED": "x\ny", "KEPT": "before-after", "OMP_NUM_THREADS": "3", "RANK": str(rank), "cwd": str(folder),
            **more,
        }  # fmt: skip
        assert {key: seen[key] for key in wanted} == wanted


def test_ranks_get_the_environment_and_the_interpreter(tmp_path):
    """Exec'ed ranks; launch.env is there before the lines, and theirs is the last word. Dry run and check show them."""
    recipe(tmp_path, nproc=2, warm_start=False)
    run = start(tmp_path, "r.yaml")
    _, err = run.end()
    assert run.process.returncode == 0, err
    assert_seen(tmp_path, 2, python=f"{tmp_path}/env/bin/python3", forked=False)
    assert (tmp_path / "ran.txt").read_text() == "here\n"
    assert "setup      source env/bin/activate" in distperf(tmp_path, "launch", "r.yaml", "--dry-run").stdout
    checked = json.loads(distperf(tmp_path, "check", "r.yaml", "--json").stdout)
    found = {check["name"]: check["found"] for check in checked["hosts"][0]["checks"]}
    assert found["setup"].startswith("4 lines in ")
    assert found["python"].startswith(f"{tmp_path}/env/bin/python3 ")


def test_forked_ranks_get_it_too(tmp_path):
    """Warm start: the process that ranks are forked from has been started with it."""
    recipe(tmp_path, nproc=2, warm_start=True, env={"WITH_TORCH": "1"})
    run = start(tmp_path, "r.yaml")
    _, err = run.end()
    assert run.process.returncode == 0, err
    assert_seen(tmp_path, 2, forked=True)


def test_a_line_that_fails_is_exit_code_3_and_keeps_secrets(tmp_path):
    """Host, line, code and output; no run folder, no process; what the line printed of a secret is not shown."""
    recipe(tmp_path, lines=["echo token $TOKEN", "sleep 100 & echo so $TOKEN; exit 5"], env_secret=["TOKEN"])
    env = {"TOKEN": "mellon-1234"}
    run = start(tmp_path, "r.yaml", env=env)
    out, err = run.end()
    assert run.process.returncode == 3
    assert (
        "localhost: launch.setup, line 2 of 2 (`sleep 100 & echo so $TOKEN; exit 5`) ended with code 5" in err
    )
    assert "    | token ***\n    | so ***" in err
    assert "mellon" not in out + err
    assert not (tmp_path / "runs").exists()
    assert not [pid for pid in os.listdir("/proc") if pid.isdigit() and cwd(pid) == str(tmp_path)]
    assert distperf(tmp_path, "check", "r.yaml", env=env).returncode == 3


def cwd(pid):
    try:
        return os.readlink(f"/proc/{pid}/cwd")
    except OSError:
        return None


@pytest.fixture
def place(lab, request, monkeypatch):
    folder = lab.dir / "shared" / request.node.name
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)
    (folder / "hosts").write_text("host1 slots=2\nhost2 slots=1\n")
    monkeypatch.setenv("DISTPERF_SSH_CONFIG", str(lab.dir / "ssh_config"))
    return folder


@pytest.mark.lab
def test_over_ssh_and_again_on_a_fresh_agent(lab, place):
    """Each node runs them once; one whose agent is killed runs them again before its ranks start anew."""
    recipe(place)
    (place / "ran.txt").touch(mode=0o666)
    (place / "ran.txt").chmod(0o666)
    (place / "wait").touch()
    run = start(place, "r.yaml", "--hosts", "hosts")
    run.until(lambda s: s["state"] == "running")
    assert (place / "ran.txt").read_text() == "here\n" * 2
    lab.ssh(2, "pkill -KILL -o -f 'python3 -I -S -u -c'")
    _, err = run.end()
    assert run.process.returncode == 0, err
    assert run.status()["attempt"] == 2
    assert (place / "ran.txt").read_text() == "here\n" * 3
    assert_seen(place, 3, python=f"{place}/env/bin/python3")
    assert gone(run.token(), within_s=1)


@pytest.mark.lab
def test_one_host_of_two_fails(lab, place):
    """Only the host that failed is named, and nothing has started on the other one."""
    recipe(place, lines=["true", "grep -q host1 /etc/hostname || [ $(hostname) = host1 ]"])
    run = start(place, "r.yaml", "--hosts", "hosts")
    _, err = run.end()
    assert run.process.returncode == 3
    assert "host2: launch.setup, line 2 of 2" in err
    assert "host1: " not in err
    assert not list(place.glob("out-*"))
