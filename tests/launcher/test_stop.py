import socket

import pytest

from launcher import events
from launcher.errors import UsageError
from launcher.journal import Journal
from launcher.rundir import RunDir
from launcher.stop import stop_run


@pytest.fixture
def run_of(tmp_path):
    """run_of(controller, event...) is a run's folder with that journal."""

    def make(controller, *more):
        run = RunDir(tmp_path)
        policy = {"max_restarts": 1, "heartbeat_timeout_s": 1, "lease_s": 7, "grace_s": 1, "script": True}
        pen = Journal(run.events)
        for event in (events.RunCreated(0.0, "r", "r", None, [], policy, controller, "0"), *more):
            pen.write(event)
        pen.close()
        return run

    return make


def test_a_run_that_has_ended(run_of):
    """There is nothing to stop, which is no error."""
    run = run_of({"host": "elsewhere.invalid", "pid": 1, "created": 0.0}, events.Ended(1.0, "failed", 1))
    assert stop_run(run, False) == "run r has already ended (failed)"


def test_a_run_led_from_elsewhere(run_of):
    """No signal goes to a process of this machine that happens to have the same number."""
    run = run_of({"host": "elsewhere.invalid", "pid": 1, "created": 0.0})
    with pytest.raises(UsageError, match=r"led from elsewhere\.invalid: stop it there"):
        stop_run(run, False)


def test_a_dead_controller(run_of):
    """Its ranks end by themselves; the user is told when."""
    run = run_of({"host": socket.gethostname(), "pid": 2**22 + 1, "created": 0.0})
    assert stop_run(run, False) == "the controller of run r is dead; its ranks end themselves within 7 s"
