"""Runs that are led in the background, and what other terminals can do with them. On this machine, no root needed."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import signal
import socket
import subprocess
import tempfile
import time
from collections import Counter
from pathlib import Path

import psutil
import pytest
from integration.launches import DISTPERF, distperf, gone, processes_of

from launcher import control

pytestmark = pytest.mark.slow

# Writes lines until there is a file `end`, then ends; in the first attempt rank 1 exits with the code in it.
SCRIPT = """
import os, pathlib, signal, sys, time
end = pathlib.Path("end")
if "stubborn" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
for i in range(200):
    print("attempt", os.environ["DISTPERF_ATTEMPT"], "line", i, flush=True)
while not end.exists():
    time.sleep(0.05)
print("last words", end="")
first = os.environ["DISTPERF_ATTEMPT"] == "1"
sys.exit(int(end.read_text()) if os.environ["RANK"] == "1" and first else 0)
"""
PLACE = ("--nproc", "2", "--script", "lines.py")


@pytest.fixture
def folder(tmp_path):
    """A folder to launch in; runs that a test leaves are ended."""
    (tmp_path / "lines.py").write_text(SCRIPT)
    yield tmp_path
    for journal in tmp_path.rglob("events.jsonl"):
        distperf(tmp_path, "stop", "--now", str(journal.parent))


def detach(folder, *args, sets=("launch.max_restarts=0",), script_args=()):
    """`launch --detach`; the run's id."""
    flags = [flag for text in sets for flag in ("--set", text)]
    done = distperf(folder, "launch", "--detach", *PLACE, *flags, *args, "--", *script_args)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def status(folder, run):
    return json.loads(distperf(folder, "status", run, "--json").stdout)


def controller(folder, run):
    """What the run's first journal line says of its controller."""
    return json.loads((folder / "runs" / run / "events.jsonl").read_text().splitlines()[0])["controller"]


def log_text(folder, run, rank):
    path = folder / "runs" / run / "logs" / "attempt-1" / f"rank-{rank:05d}.log"
    return path.read_text() if path.exists() else ""


def end(folder, code=0):
    (folder / "end.new").write_text(str(code))
    (folder / "end.new").rename(folder / "end")


def until(holds, within_s=30):
    deadline = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline, "never came"
        time.sleep(0.05)


class Beside:
    """A distperf command that goes on beside the test, its output in files."""

    def __init__(self, folder, *args):
        self._out, self._err = folder / f"out-{time.monotonic_ns()}", folder / f"err-{time.monotonic_ns()}"
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(
                [DISTPERF, *args], cwd=folder, stdin=subprocess.DEVNULL, stdout=out, stderr=err
            )

    @property
    def out(self):
        return self._out.read_text()

    @property
    def err(self):
        return self._err.read_text()

    def code(self):
        return self.process.wait(60)


class Terminal:
    """A command on a terminal of its own."""

    def __init__(self, folder, *command):
        self._fd, inner = pty.openpty()
        self.process = subprocess.Popen(
            ["setsid", "--ctty", *command], cwd=folder, stdin=inner, stdout=inner, stderr=inner
        )
        os.close(inner)
        os.set_blocking(self._fd, False)
        self.text = ""

    def type(self, text):
        os.write(self._fd, text.encode())

    def shows(self, text):
        """Wait for it."""

        def read():
            with contextlib.suppress(OSError):  # nothing there now, or its last process has ended
                self.text += os.read(self._fd, 1 << 16).decode()
            return text in self.text

        until(read)

    def code(self):
        """Wait for the command's end."""
        deadline = time.monotonic() + 30
        while self.process.poll() is None and time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                self.text += os.read(self._fd, 1 << 16).decode()
            time.sleep(0.02)
        return self.process.wait(1)

    def close(self):
        """As closing the window does: whoever is in the foreground gets SIGHUP."""
        os.close(self._fd)


def test_a_detached_run_outlives_its_terminal(folder):
    """Its terminal is closed and all of its session killed: it goes on, shows itself, and ends as it would have."""
    launch = " ".join([DISTPERF, "launch --detach", *PLACE, "--set launch.max_restarts=0"])
    terminal = Terminal(folder, "bash", "-c", f"{launch}; echo code $?; sleep 60")
    terminal.shows("code 0")
    run = re.search(r"^(lines-\S+)\r$", terminal.text, re.MULTILINE)[1]
    assert f"distperf attach {run}" in terminal.text
    assert str(folder / "runs" / run) in terminal.text
    session = terminal.process.pid
    terminal.close()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, ProcessLookupError):
            if os.getsid(process.pid) == session:
                process.kill()
    terminal.process.wait(10)
    assert status(folder, run)["state"] in ("starting", "running")
    pid = controller(folder, run)["pid"]
    assert os.getsid(pid) == pid
    os.kill(pid, signal.SIGHUP)
    end(folder, code=3)
    attached = distperf(folder, "attach", run)
    assert attached.returncode == 1
    assert "first failure: rank 1 on localhost" in attached.stderr
    assert "exited with code 3" in attached.stderr
    log = folder / "runs" / run / "controller.log"
    assert log.stat().st_mode & 0o777 == 0o640
    until(lambda: not psutil.pid_exists(pid))
    assert "first failure: rank 1" in log.read_text()
    assert gone(run, 5)


def test_attach_shows_the_run_live(folder):
    """The newest lines, then what comes, restarts too; the end with the run's report and exit code."""
    run = detach(folder, sets=("launch.max_restarts=1",))
    until(lambda: "line 199" in log_text(folder, run, rank=0))
    attached = Beside(folder, "attach", run)
    until(lambda: attached.out)
    end(folder, code=3)
    assert attached.code() == 0, attached.err
    assert attached.out.startswith("localhost 0 | attempt 1 line 190\n")
    lines = Counter(attached.out.splitlines())
    assert [lines[f"localhost {r} | attempt 2 line {i}"] for r in (0, 1) for i in range(200)] == [1] * 400
    assert lines["localhost 1 | last words"] == 2
    for text in (f"run {run}: running, attempt 1", "restart 1 of 1", "attempt 2", f"run {run} finished"):
        assert text in attached.err
    assert "\x1b" not in attached.out + attached.err
    again = distperf(folder, "attach", run)
    assert (again.returncode, again.stdout) == (0, "")
    assert f"run {run} finished" in again.stderr


def test_logs_follow_every_line_once(folder):
    """`logs -f` sees each line of each attempt once, also one without an end, and ends with the run."""
    run = detach(folder, sets=("launch.max_restarts=1",))
    follower = Beside(folder, "logs", "-f", run)
    until(lambda: follower.out)
    end(folder, code=3)
    assert follower.code() == 0
    lines = Counter(follower.out.splitlines())
    assert lines.pop("localhost 0 | last words") in (1, 2)  # rank 0 may be stopped before it ends by itself
    assert lines.pop("localhost 1 | last words") == 2
    every = (f"localhost {r} | attempt {a} line {i}" for r in (0, 1) for a in (1, 2) for i in range(200))
    assert lines == Counter(every)


def test_stop_and_stop_again(folder):
    """`stop` ends a run in order (130); a second one, while ranks use their grace, ends it at once."""
    run = detach(folder, sets=("launch.grace_s=100",), script_args=("stubborn",))
    until(lambda: "line 199" in log_text(folder, run, rank=1))
    asked = control.ask(controller(folder, run)["socket"], "ping")
    assert asked == {"pid": controller(folder, run)["pid"], "state": "running"}
    first = Beside(folder, "stop")
    until(lambda: '"Interrupted"' in (folder / "runs" / run / "events.jsonl").read_text())
    assert status(folder, run)["exit_code"] is None
    second = distperf(folder, "stop")
    assert "has ended (stopped)" in second.stderr
    assert first.code() == 0
    assert "has ended (stopped)" in first.err
    assert status(folder, run)["exit_code"] == 130
    assert gone(run, 2)
    until(lambda: not os.path.exists(controller(folder, run)["socket"]))


def test_two_runs_do_not_disturb_each_other(folder):
    """One of two runs of a user on a machine is killed outright: the other one does not notice."""
    one, other = detach(folder, script_args=("stubborn",)), detach(folder)
    until(lambda: {status(folder, run)["state"] for run in (one, other)} == {"running"})
    pids = processes_of(other)
    assert set(pids).isdisjoint(processes_of(one))
    assert controller(folder, one)["socket"] != controller(folder, other)["socket"]
    assert "has ended (stopped)" in distperf(folder, "stop", "--now", one).stderr
    assert gone(one, 2)
    assert processes_of(other) == pids
    end(folder)
    assert distperf(folder, "attach", other).returncode == 0


@contextlib.contextmanager
def as_nobody():
    os.setegid(65534)
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
def test_another_user_is_refused(folder):
    """By the folder's mode; and, could it get at the socket, by what the kernel says of it."""
    run = detach(folder)
    path = Path(controller(folder, run)["socket"])
    with as_nobody(), pytest.raises(PermissionError, match="Permission denied"):
        control.ask(str(path), "stop")
    with tempfile.TemporaryDirectory(dir="/tmp") as public:
        os.chmod(public, 0o755)
        path.rename(Path(public, "open"))
        Path(public, "open").chmod(0o777)
        with as_nobody(), pytest.raises(PermissionError, match="belongs to another user"):
            control.ask(f"{public}/open", "stop")
        assert control.ask(f"{public}/open", "ping")["state"] in ("starting", "running")
    end(folder)  # and without its socket it still ends, and can be stopped
    assert distperf(folder, "attach", run).returncode == 0


def test_without_a_socket_a_signal_does(folder):
    """A socket that somebody has removed: `stop` sends the signal that Ctrl-C sends."""
    run = detach(folder)
    os.unlink(controller(folder, run)["socket"])
    assert "has ended (stopped)" in distperf(folder, "stop", run).stderr
    assert status(folder, run)["exit_code"] == 130


def test_a_dead_controller(folder):
    """Killed outright: the run is lost to attach (1) and stop, its ranks end, its socket is no obstacle to the next."""
    run = detach(folder)
    until(lambda: status(folder, run)["state"] == "running")
    os.kill(controller(folder, run)["pid"], signal.SIGKILL)
    attached = distperf(folder, "attach", run)
    assert attached.returncode == 1
    assert "the run is lost" in attached.stderr
    assert "is dead" in distperf(folder, "stop", run).stderr
    with pytest.raises(
        (ConnectionRefusedError, FileNotFoundError)
    ):  # another launch may have cleared it away
        control.ask(controller(folder, run)["socket"], "stop")
    assert gone(run, 10)
    assert "has ended (stopped)" in distperf(folder, "stop", detach(folder)).stderr
    assert not os.path.exists(controller(folder, run)["socket"])


def test_a_very_long_run_folder(folder):
    """Beyond the limit of a socket's path."""
    long = Path(*["x" * 60] * 6)
    run = detach(folder, "--run-dir", str(long))
    assert "has ended (stopped)" in distperf(folder, "stop", "--run-dir", str(long), run).stderr


def test_what_goes_wrong_before_is_told_in_the_foreground(folder):
    """A host that cannot be reached: the message here, exit code 3, nothing in the background."""
    (folder / "hosts").write_text("127.0.0.1 port=1 slots=1\n")
    done = distperf(folder, "launch", "--detach", "--script", "lines.py", "--hosts", "hosts")
    assert done.returncode == 3
    assert "127.0.0.1" in done.stderr
    assert done.stdout == ""
    assert not (folder / "runs").exists()


@pytest.mark.parametrize(("how", "code"), [("\x03", 130), (signal.SIGTERM, 143)])
def test_an_end_before_the_run_has_begun(folder, how, code):
    """Ctrl-C, or SIGTERM for the process that was started, while a host keeps silent: nothing goes on behind it."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        (folder / "hosts").write_text(f"127.0.0.1 port={silent.getsockname()[1]} slots=1\n")
        terminal = Terminal(
            folder, DISTPERF, "launch", "--detach", "--script", "lines.py", "--hosts", "hosts"
        )
        connection, _ = silent.accept()
        children = psutil.Process(terminal.process.pid).children()
        if isinstance(how, str):
            terminal.type(how)
        else:
            terminal.process.send_signal(how)
        assert terminal.code() == code
        terminal.close()
        connection.close()
    assert len(children) == 1
    assert not children[0].is_running()


def test_ctrl_c_without_a_terminal_detaches(folder):
    """The run goes on; --on-interrupt stop ends it, and attach with it, with the run's code."""
    run = detach(folder)
    until(lambda: status(folder, run)["state"] == "running")
    for flags, message in (
        ((), "goes on, unwatched"),
        (("--on-interrupt", "stop"), "was stopped (exit code 130)"),
    ):
        attached = Beside(folder, "attach", run, *flags)
        until(lambda attached=attached: attached.out)
        attached.process.send_signal(signal.SIGINT)
        assert attached.code() == 130
        assert message in attached.err
    assert status(folder, run)["state"] == "stopped"


def test_ctrl_c_on_a_terminal_asks(folder):
    """d leaves the run alone, so does a second Ctrl-C; s stops it."""
    run = detach(folder)
    until(lambda: status(folder, run)["state"] == "running")
    for answer in ("d\n", "\x03", "s\n"):
        terminal = Terminal(folder, DISTPERF, "attach", run)
        terminal.shows("line 199")
        terminal.type("\x03")
        terminal.shows("detach (d) or stop (s)?")
        terminal.type(answer)
        assert terminal.code() == 130
        terminal.close()
        assert status(folder, run)["state"] == ("stopped" if answer == "s\n" else "running")
