import os
import socket
from dataclasses import replace

import psutil
import pytest

from launcher import events
from launcher.journal import Journal
from launcher.rundir import RunDir
from launcher.state import Failure, Policy, Rank, RunState
from launcher.view import SILENT_S, as_text, controller_lives, look, public_state

FAILURE = Failure("a", 0, "exit", 3, None, "exited with code 3", None, "")
STATE = RunState("r", "r", Policy(1, 10, 25, 30, True), (Rank(0, 0, "a", 0),), 9, {})


def me():
    process = psutil.Process()
    return {"host": socket.gethostname(), "pid": process.pid, "created": process.create_time()}


@pytest.fixture
def journal(tmp_path):
    """journal(controller, event...) writes a run's journal and returns its folder."""

    def write(controller, *more):
        run = RunDir(tmp_path)
        ranks = [{"rank": 0, "local_rank": 0, "host": "a", "node_rank": 0, "coordinates": {"pp": 0}}]
        pen = Journal(run.events)
        policy = {"max_restarts": 1, "heartbeat_timeout_s": 1, "lease_s": 1, "grace_s": 1, "script": True}
        pen.write(events.RunCreated(0.0, "r", "r", 9, ranks, policy, controller, "0"))
        for event in more:
            pen.write(event)
        pen.close()
        return run

    return write


@pytest.mark.parametrize(
    ("state", "failure", "alive", "name"),
    [
        ("starting", None, True, "starting"),
        ("stopping", None, True, "running"),
        ("stopping", FAILURE, True, "restarting"),
        ("running", None, False, "lost"),
        ("stopped", None, True, "stopped"),
    ],
)
def test_public_state(state, failure, alive, name):
    """Users see only the promised names; a run without an end whose controller is dead is lost."""
    assert public_state(replace(STATE, state=state, failure=failure), alive) == name


def test_a_living_controller(journal):
    """This process leads the run: it lives; one with the same pid and another start time is not it."""
    run = journal(me(), events.AttemptBegan(0.1, 1))
    assert look(run)["state"] == "starting"
    assert not controller_lives(run, replace(STATE, controller={**me(), "created": 1.0}))
    assert not controller_lives(run, replace(STATE, controller={**me(), "pid": 2**22 + 1}))


def test_a_controller_elsewhere(journal):
    """On another machine, the journal's age tells."""
    run = journal({"host": "elsewhere.invalid", "pid": 1, "created": 0.0})
    assert look(run)["state"] == "queued"
    old = run.events.stat().st_mtime - SILENT_S - 5
    os.utime(run.events, (old, old))
    assert look(run)["state"] == "lost"


def test_text_of_a_failed_run(journal):
    """One snapshot: state, ranks and the first failure, without any control character of a rank's."""
    run = journal(
        {"host": "elsewhere.invalid", "pid": 1, "created": 0.0},
        events.AttemptBegan(0.1, 1),
        events.RankReported(0.2, 1, 0, {"kind": "error", "type": "E", "message": "\x1b[2Jbad"}),
        events.RankExited(0.3, 1, 0, 3, None, "", None),
        events.Ended(0.4, "failed", 1),
    )
    text = "\n".join(as_text(look(run)))
    assert "failed" in text
    assert "exit code 1" in text
    assert "first failure: rank 0 on a: E: bad" in text
    assert "\x1b" not in text
