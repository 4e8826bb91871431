"""A slow link and a chatty rank: what Ctrl-C waits for, and what a second one does not."""

from __future__ import annotations

import shutil
import signal
import subprocess
import time

import pytest
from integration.launches import gone, start

pytestmark = [
    pytest.mark.lab,
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("tc") is None, reason="needs tc to slow a link down"),
]

CHATTY = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
for n in range(5000):
    os.write(1, b"%07d\\n" % n * 1000)
open(f"wrote-{os.environ['RANK']}", "w").close()
time.sleep(1000)
"""


@pytest.fixture
def slow_link(lab):
    """Host 2 sends half a megabyte a second."""
    device = ["tc", "-n", f"dp{lab.net}-h2", "qdisc", "replace", "dev", "eth0", "root"]
    subprocess.run([*device, "tbf", "rate", "4mbit", "burst", "64kb", "latency", "50ms"], check=True)
    yield
    subprocess.run([*device, "pfifo"], check=True)


def test_a_second_ctrl_c_does_not_wait_for_logs(lab, monkeypatch, slow_link):
    """40 MB are on their way: the run ends within seconds, nothing is left, and the rest is where the report says."""
    folder = lab.dir / "shared" / "chatty"
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)
    (folder / "chatty.py").write_text(CHATTY)
    (folder / "hosts").write_text("host1 slots=1\nhost2 slots=1\n")
    monkeypatch.setenv("DISTPERF_SSH_CONFIG", str(lab.dir / "ssh_config"))
    run = start(folder, "--script", "chatty.py", "--hosts", "hosts", "--quiet", "--set", "launch.grace_s=2")
    run.until(lambda s: s["state"] == "running" and len(list(folder.glob("wrote-*"))) == 2)
    run.process.send_signal(signal.SIGINT)
    time.sleep(4)
    assert run.process.poll() is None, "after the grace it waits for logs"
    told = time.monotonic()
    run.process.send_signal(signal.SIGINT)
    _, err = run.end(within_s=30)
    assert time.monotonic() - told < 15
    assert run.process.returncode == 130
    assert gone(run.token(), within_s=1)
    (line,) = [line for line in err.splitlines() if line.startswith("  on host2  ")]
    assert " of logs were not waited for; they are in /tmp/distperf-" in line
    left = line.rpartition("they are in ")[2].removesuffix(" there")
    size = int(lab.ssh(2, f"stat -c %s {left}/attempt-1-rank-00001.log"))
    arrived = (run.run / "logs" / "attempt-1" / "rank-00001.log").read_bytes()
    assert size == 40_000_000
    assert 0 < len(arrived) < size
    whole = b"".join(b"%07d\n" % n * 1000 for n in range(5000))
    assert whole.startswith(arrived)
