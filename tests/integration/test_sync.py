"""Code goes along to hosts that do not see it, over real SSH."""

from __future__ import annotations

import json

import pytest
from integration.launches import distperf

pytestmark = [pytest.mark.lab, pytest.mark.slow]
SCRIPT = """
import os, net
print("runs", net.WORD, os.path.exists("secret"), os.getcwd())
open("made-here", "w").close()
"""


def test_ranks_run_in_a_copy_that_goes_with_them(tmp_path, lab, monkeypatch):
    """Two hosts that see nothing of this folder: the first launch sends all, the next what has changed; dry run and
    check know it; nothing stays on a host, unless it is to be kept.
    """
    monkeypatch.setenv("DISTPERF_SSH_CONFIG", str(lab.dir / "ssh_config"))
    (tmp_path / "hosts").write_text("host1 slots=1\nhost2 slots=2\n")
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "net.py").write_text("WORD = 'one'\n")
    (tmp_path / "secret").write_text("stays here")
    sync = {"source": ".", "exclude": ["secret", "hosts"]}
    launch = {"sync": sync, "setup": ["test -e train.py"], "warm_start": False}
    (tmp_path / "r.yaml").write_text(
        json.dumps({"name": "r", "script": {"path": "train.py"}, "launch": launch})
    )
    command = ("launch", "r.yaml", "--hosts", "hosts")
    assert "sync       3 files" in distperf(tmp_path, *command, "--dry-run").stdout

    first = distperf(tmp_path, *command)
    assert first.returncode == 0, first.stderr
    assert "launch.sync: 3 files, " in first.stderr
    said = [line.split("| runs ")[1] for line in first.stdout.splitlines()]
    assert len(said) == 3
    assert all(line.startswith("one False /home/trainer/.cache/distperf/work/r-") for line in said), said

    (tmp_path / "net.py").write_text("WORD = 'another'\n")
    second = distperf(tmp_path, *command)
    assert "; 34 B sent to 2 hosts" in second.stderr, second.stderr
    assert second.stdout.count("runs another False") == 3
    assert lab.ssh(1, "ls ~/.cache/distperf/work") == ""

    kept = distperf(tmp_path, *command, "--set", "launch.sync.keep=true")
    assert "; all there" in kept.stderr, kept.stderr
    assert "made-here" in lab.ssh(2, "ls ~/.cache/distperf/work/*")
    checked = json.loads(distperf(tmp_path, "check", "r.yaml", "--hosts", "hosts", "--json").stdout)
    found = {check["name"]: check["ok"] for host in checked["hosts"] for check in host["checks"]}
    assert (found["workdir"], found["setup"]) == (True, True)


def test_too_much_is_refused_before_any_host_is_asked(tmp_path):
    """Exit code 2, with the largest files."""
    (tmp_path / "hosts").write_text("nowhere.invalid slots=1\n")
    (tmp_path / "train.py").write_text("")
    with open(tmp_path / "big.bin", "wb") as file:
        file.truncate(2 << 20)
    sets = ("--set", "launch.sync.source=.", "--set", "launch.sync.limit_mib=1")
    done = distperf(tmp_path, "launch", "--script", "train.py", "--hosts", "hosts", *sets)
    assert done.returncode == 2, done.stderr
    assert "2.0 MiB  big.bin" in done.stderr
