"""`distperf bench` over real SSH: a slow host is named among good ones, and nothing is left behind."""

from __future__ import annotations

import json
import subprocess

import pytest
from integration.launches import distperf

pytestmark = [pytest.mark.lab, pytest.mark.slow, pytest.mark.timeout(300)]
LAB_HOSTS = 3
RATE = "100mbit"  # a hundredth of what the lab's links carry


@pytest.fixture
def place(lab, request, monkeypatch):
    """A folder that this machine and all hosts see at the same path, with a hostfile."""
    folder = lab.dir / "shared" / request.node.name
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)
    (folder / "hosts").write_text("host1 slots=1\nhost2 slots=1\nhost3 slots=1\n")
    monkeypatch.setenv("DISTPERF_SSH_CONFIG", str(lab.dir / "ssh_config"))
    monkeypatch.setenv("DISTPERF_CACHE", str(folder / "cache"))
    return folder


def test_a_host_with_a_slow_link(lab, place):
    """What host2 sends is slowed by its kernel: it is named, whatever else a busy machine slows, and rates are kept."""
    here = ["ip", "netns", "exec", f"dp{lab.net}-h2", "tc", "qdisc"]
    shape = ["tbf", "rate", RATE, "burst", "64kb", "latency", "100ms"]
    subprocess.run([*here, "add", "dev", "eth0", "root", *shape], check=True, timeout=10)
    try:
        done = distperf(place, "bench", "comm", "--hosts", "hosts", "--json", limit_s=240)
    finally:
        subprocess.run([*here, "del", "dev", "eth0", "root"], check=True, timeout=10)
    assert done.returncode == 0, done.stderr
    value = json.loads(done.stdout)
    slow = [(one["hosts"], one["what"]) for one in value["outliers"] if one["where"] == "rate"]
    assert (["host2"], "link") in slow
    assert len(value["links"]) == 2 * 3
    assert (place / "cache" / "rates").is_dir()
