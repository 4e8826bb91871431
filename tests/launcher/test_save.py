import json
import threading

import pytest

from launcher import control, events
from launcher.errors import LauncherError, UsageError
from launcher.save import ask_to_save, save_run
from scripts.recorded_run import record


@pytest.fixture
def recorder(tmp_path):
    """A run of two ranks that goes on, led by this process; its journal can be written on."""
    return record(tmp_path / "r", nodes=1, slots=2, steps=20, alive=True)


def led(recorder, tmp_path, happens):
    """The same run with a control socket whose controller makes something happen."""
    lines = recorder.run.events.read_bytes()

    def deliver(request):
        assert request.do == "save"
        request.answer({"pid": 1, "state": "running"})
        happens()
        recorder.flush()

    socket = control.listening(recorder.run.path, deliver, tmp_path / "sockets")
    path = socket.__enter__()
    recorder.run.events.write_bytes(lines.replace(b'"socket": null', b'"socket": "%s"' % path.encode(), 1))
    return socket


def test_the_checkpoint_that_was_asked_for(recorder, tmp_path):
    """One that was already under way for an earlier step is not it."""

    def happens():
        recorder.report(2, 0, kind="event", event="checkpoint", step=15, path="old")
        recorder.report(2, 0, kind="event", event="checkpoint", step=21, path="runs/r/step-00000021")

    socket = led(recorder, tmp_path, happens)
    try:
        assert save_run(recorder.run) == "checkpoint of step 21: runs/r/step-00000021"
    finally:
        socket.__exit__(None, None, None)


def test_it_fails(recorder, tmp_path):
    """A full disk, or the end of the run, is told."""
    happened = threading.Event()

    def happens():
        if not happened.is_set():
            happened.set()
            recorder.report(2, 0, kind="event", event="checkpoint_failed", step=21, problem="disk full")
        else:
            recorder.happened(events.Ended(recorder.t, "failed", 1))

    socket = led(recorder, tmp_path, happens)
    try:
        with pytest.raises(LauncherError, match="could not be written: disk full"):
            save_run(recorder.run)
        with pytest.raises(LauncherError, match="is failed: it has not saved after step 20"):
            save_run(recorder.run)
    finally:
        socket.__exit__(None, None, None)


def test_refusals(recorder):
    """No socket, no checkpoints, or no run any more: said before anything is asked."""
    with pytest.raises(UsageError, match="no control socket"):
        ask_to_save(recorder.run)
    recorder.run.runspec.write_text(json.dumps({"checkpoint": {"every_steps": 0, "save_last": False}}))
    with pytest.raises(UsageError, match="writes no checkpoints"):
        ask_to_save(recorder.run)
    recorder.happened(events.Ended(recorder.t, "finished", 0))
    recorder.flush()
    with pytest.raises(UsageError, match="is over"):
        ask_to_save(recorder.run)
