"""The link between controller and node breaks: what comes back goes on, what does not is known to have ended."""

from __future__ import annotations

import time

import pytest
from integration.launches import gone, start

pytestmark = [pytest.mark.lab, pytest.mark.slow]

# Says a numbered line every 50 ms and reports it as a step; the log of a rank is known to the byte.
SCRIPT = """
import json, os, sys, time
for step in range(1, int(sys.argv[1]) + 1):
    print("line", step, "of rank", os.environ["RANK"])
    record = json.dumps({"kind": "progress", "step": step})  # what distperf.report sends; these hosts need no distperf
    os.write(int(os.environ["DISTPERF_REPORT_FD"]), record.encode() + b"\\n")
    time.sleep(0.05)
"""


@pytest.fixture
def place(lab, request, monkeypatch):
    folder = lab.dir / "shared" / request.node.name
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)
    (folder / "count.py").write_text(SCRIPT)
    (folder / "hosts").write_text("host1 slots=1\nhost2 slots=2\n")
    monkeypatch.setenv("DISTPERF_SSH_CONFIG", str(lab.dir / "ssh_config"))
    return folder


def launch(place, steps, *flags):
    args = ["--script", "count.py", "--hosts", "hosts", *flags, "--", str(steps)]
    run = start(place, *args)
    run.until(lambda s: s["state"] == "running" and all(r["step"] > 0 for r in s["ranks"]))
    return run


def log(run, rank, attempt=1):
    return (run.run / "logs" / f"attempt-{attempt}" / f"rank-{rank:05d}.log").read_text()


def whole(rank, steps):
    return "".join(f"line {step} of rank {rank}\n" for step in range(1, steps + 1))


def test_killed_ssh_session_is_made_anew(lab, place):
    """sshd's process of the connection is killed: the agent goes on, is found again, and not a byte of log is lost."""
    run = launch(place, 240)
    lab.ssh(2, "pkill -KILL -f '^sshd: trainer'", user="root")
    _, err = run.end()
    assert run.process.returncode == 0, err
    assert "the link to host2 is gone; trying again" in err
    assert "the link to host2 is back" in err
    status = run.status()
    assert (status["attempt"], status["state"]) == (1, "finished")
    assert [log(run, rank) for rank in range(3)] == [whole(rank, 240) for rank in range(3)]
    assert gone(run.token(), within_s=1)
    assert lab.ssh(2, "ls -d /tmp/distperf-count-* 2>/dev/null || true") == ""


def test_cable_pulled_and_plugged_in_again_within_the_lease(lab, place):
    """A cut of 13 s under a lease of 25 s: unreachable for a while, then as if nothing had been."""
    run = launch(place, 500)
    lab.testbed("cut", 2)
    time.sleep(13)
    lab.testbed("mend", 2)
    _, err = run.end()
    assert run.process.returncode == 0, err
    assert "host2 is unreachable" in err
    assert run.status()["attempt"] == 1
    assert [log(run, rank) for rank in range(3)] == [whole(rank, 500) for rank in range(3)]


def test_killed_agent_is_known_at_once_and_its_logs_are_complete(lab, place):
    """SIGKILL of an agent: its ranks die with it, the run restarts within seconds, and what they wrote is here."""
    run = launch(place, 200)
    time.sleep(0.5)
    lab.ssh(2, "pkill -KILL -o -f 'python3 -I -S -u -c'")
    began = time.monotonic()
    run.until(lambda s: s["attempt"] == 2, within_s=20)
    assert time.monotonic() - began < 15
    _, err = run.end()
    assert run.process.returncode == 0, err
    failure = run.status()["first_failure"]
    assert (failure["host"], failure["cause"]) == ("host2", "node_lost")
    for rank in (1, 2):
        written = log(run, rank, attempt=1)
        assert whole(rank, 200).startswith(written)
        assert written.count("\n") > 10
    assert [log(run, rank, attempt=2) for rank in range(3)] == [whole(rank, 200) for rank in range(3)]
    assert gone(run.token(), within_s=1)
    assert lab.ssh(2, "ls -d /tmp/distperf-count-* 2>/dev/null || true") == ""
