import os
import socket

import psutil
import pytest

from launcher import events
from launcher.attach import LINES_BEFORE, Watch, attach
from launcher.journal import Journal, Metrics, Story
from launcher.rundir import RunDir

RANKS = [{"rank": r, "local_rank": r, "host": "a", "node_rank": 0, "coordinates": {}} for r in (0, 1)]
POLICY = {"max_restarts": 1, "heartbeat_timeout_s": 1, "lease_s": 7, "grace_s": 1, "script": False}


class Screen:
    """Remembers what it was shown, in order."""

    def __init__(self):
        self.shown = []

    def log(self, host, rank, data):
        self.shown.append((rank, data))

    def metrics(self, line):
        self.shown.append(line)

    def state(self, state):
        self.shown.append(state.state)

    def note(self, text):
        self.shown.append(text)

    def new(self):
        """What was shown since, a state only when it differs from the one before."""
        new = [thing for i, thing in enumerate(self.shown) if i == 0 or thing != self.shown[i - 1]]
        self.shown = self.shown[-1:] if self.shown else []
        return new


class Folder:
    """A run's folder, written as a controller writes it."""

    def __init__(self, path, pid):
        self.run = RunDir(path)
        process = psutil.Process(os.getpid())
        self._journal = Journal(self.run.events)
        self._metrics = Metrics(self.run)
        controller = {
            "host": socket.gethostname(),
            "pid": pid,
            "created": process.create_time(),
            "socket": None,
        }
        self.add(events.RunCreated(0.0, path.name, "run", 9, RANKS, POLICY, controller, "0"))

    def add(self, *happened):
        for event in happened:
            self._journal.write(event)

    def step(self, **line):
        self._metrics.write(line)

    def begin(self, attempt):
        self.run.logs(attempt).mkdir(parents=True)
        self.add(events.AttemptBegan(1.0 * attempt, attempt))

    def write(self, attempt, rank, data):
        with self.run.log(attempt, rank).open("ab") as file:
            file.write(data)

    def close(self):
        self._journal.close()
        self._metrics.close()


@pytest.fixture
def folder(tmp_path):
    made = Folder(tmp_path, os.getpid())
    yield made
    made.close()


def test_it_begins_with_the_newest_lines(folder):
    """A share of lines for each rank, once the state and the newest figures are known."""
    folder.begin(1)
    folder.step(step=1, loss=2.0, attempt=1)
    for rank in (0, 1):
        folder.write(1, rank, b"".join(b"%d\n" % i for i in range(50)))
    screen = Screen()
    watch = Watch(folder.run, Story(folder.run), screen)
    watch.look()
    share = b"".join(b"%d\n" % i for i in range(50 - LINES_BEFORE // 2, 50))
    assert screen.new() == [
        {"step": 1, "loss": 2.0, "attempt": 1},
        "starting",
        (0, share),
        (1, share),
        "starting",
    ]


def test_each_thing_is_shown_once(folder):
    """Logs, metrics and notes as they come; the rest of an attempt before the next one's beginning."""
    folder.begin(1)
    screen = Screen()
    watch = Watch(folder.run, Story(folder.run), screen)
    folder.write(1, 0, b"one")
    watch.look()
    assert screen.new() == [{}, "starting", (0, b"one"), "starting"]
    folder.write(1, 0, b" end\n")
    folder.add(events.RankExited(2.0, 1, 0, 3, None, "", None), events.NodeIdle(2.1, 1, "a"))
    folder.add(events.Noted(2.2, "a note"), events.Restarting(2.2, 0.0, "restart 1 of 1"))
    folder.begin(2)
    folder.write(2, 1, b"two\n")
    folder.step(step=1, attempt=2)
    watch.look()
    assert screen.new() == [
        "starting", "stopping", "a note", "stopping", "restart 1 of 1", "restarting",
        (0, b" end\n"), "starting", (1, b"two\n"), {"step": 1, "attempt": 2}, "starting",
    ]  # fmt: skip
    watch.look()
    assert screen.new() == ["starting"]


def test_a_run_that_has_ended(folder):
    """Its report, and its exit code."""
    folder.begin(1)
    folder.add(events.Ended(3.0, "stopped", 130))
    said = []
    assert attach(folder.run, "ask", said.append) == 130
    assert said[0] == f"run {folder.run.run_id} was stopped (exit code 130): step 0 of 9 in 3.0 s"


def test_a_run_whose_controller_is_dead(tmp_path):
    """Shown as lost, with what becomes of its ranks; 1."""
    folder = Folder(tmp_path, 2**22 + 1)  # no process can have this id
    folder.begin(1)
    said = []
    assert attach(folder.run, "ask", said.append) == 1
    assert said[-1] == "the run is lost: its controller has died; its ranks end themselves within 7 s"
    folder.close()
