"""The fault matrix: each row starts a small run, breaks something, and says what became of it.

`scripts/bench/faults.py` writes the rows into docs/reliability.md, `test_matrix.py` holds them to what is expected.
Ranks are a script without torch that counts steps, keeps a checkpoint of its own, and notes outside of its log how
many bytes it has written: what is missing from the log afterwards was lost.
"""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import termios
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
from integration.launches import DISTPERF, Launch, gone, metrics, processes_of

if TYPE_CHECKING:
    from integration.lab import Lab

SCRIPT = """
import ctypes, json, os, pathlib, signal, sys, time
fault, last = sys.argv[1], int(sys.argv[2])
rank, attempt, told = int(os.environ["RANK"]), os.environ["DISTPERF_ATTEMPT"], int(os.environ["DISTPERF_REPORT_FD"])
if fault == "import":
    import not_there
if fault == "blocked":
    from distperf.contract import reporter
    reporter()  # as `distperf.report` does: from here on the agent may ask for stacks
if fault == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
saved = pathlib.Path("saved")
side = os.open(f"written-{attempt}-{rank}", os.O_WRONLY | os.O_CREAT, 0o666)

def fall():
    pathlib.Path("fell").write_text(repr(time.time()))
    if fault == "exception":
        raise ValueError("bad lr")
    elif fault == "code":
        sys.exit(3)
    elif fault == "memory":
        hoard = bytearray(1 << 30)
    elif fault == "blocked":
        os.mkfifo("empty")
        open("empty").read()
    elif fault == "native":
        ctypes.string_at(0)
    elif fault == "killed":
        os.kill(os.getpid(), signal.SIGKILL)

written = 0
for step in range(int(saved.read_text()) + 1 if saved.exists() else 1, last + 1):
    line = b"line %d of rank %d\\n" % (step, rank)
    os.write(1, line)
    written += len(line)
    os.pwrite(side, b"%12d" % written, 0)
    os.write(told, json.dumps({"kind": "progress", "step": step}).encode() + b"\\n")
    if rank == 0 and step % 10 == 0:
        pathlib.Path("saved.new").write_text(str(step))
        os.replace("saved.new", saved)
    if rank == 1 and attempt == "1" and step == 25:
        fall()
    time.sleep(0.02)
"""
# Ranks that meet in a barrier at every step, until one of them does something else.
MEETS = """
import os, pathlib, time
import torch.distributed as dist
import distperf

def goes_elsewhere():
    pathlib.Path("fell").write_text(repr(time.time()))
    time.sleep(600)

dist.init_process_group("gloo")
for step in range(1, 31):
    if (step, dist.get_rank(), os.environ["DISTPERF_ATTEMPT"]) == (5, 1, "1"):
        goes_elsewhere()
    dist.barrier()
    print(f"line {step} of rank {dist.get_rank()}", flush=True)
    distperf.report(step)
    time.sleep(0.02)
"""
# The bundled runtime, with a rank that leaves early: sitecustomize is what a rank's interpreter runs before all else.
LEAVES_EARLY = """
import os, threading, time
def leave():
    time.sleep(0.5)
    open("fell", "w").write(repr(time.time()))
    os._exit(0)
if os.environ.get("RANK") == "1":
    threading.Thread(target=leave, daemon=True).start()
"""
RECIPE = """
name: early
model: {preset: llama-1m}
data: {synthetic: true, seq_len: 32}
train: {steps: 50, global_batch: 4}
launch: {nproc: 2, max_restarts: 0, warm_start: false, env: {PYTHONPATH: %s}}
"""
QUICK = "launch={max_restarts: 1, heartbeat_timeout_s: 1, lease_s: 3, grace_s: 1}"
PATIENT = "launch={max_restarts: 1, heartbeat_timeout_s: 1, lease_s: 15, grace_s: 1}"
STALLING = "launch={max_restarts: 1, heartbeat_timeout_s: 1, lease_s: 3, grace_s: 1, stall_timeout_s: 2}"
CGROUP = Path("/sys/fs/cgroup/memory")
CGROUP_BYTES = 400 << 20


@dataclass(frozen=True)
class Found:
    """What became of a run. noticed_s: from the fault to the controller's note of it; cause "": nothing failed."""

    cause: str
    message: str
    noticed_s: float
    outcome: str
    code: int
    attempts: int
    left: int
    lost_bytes: int


@dataclass(frozen=True)
class Place:
    """A fresh folder, which lab hosts see at the same path; lab: None for rows that need this machine only."""

    folder: Path
    lab: Lab | None = None

    def start(self, fault: str, steps: int = 60, *flags: str, script: str = "count.py", **how: Any) -> Launch:
        """Two ranks that count to `steps`: here, or on host1 and host2 of the lab."""
        (self.folder / "count.py").write_text(SCRIPT)
        where = ["--nproc", "2"]
        env = dict(os.environ)
        if self.lab is not None:
            names = (
                ("host1", "host2", "host3") if any("spares" in flag for flag in flags) else ("host1", "host2")
            )
            (self.folder / "hosts").write_text("".join(f"{name} slots=1\n" for name in names))
            self.folder.chmod(0o777)  # ranks are the lab's own user
            where, env["DISTPERF_SSH_CONFIG"] = ["--hosts", "hosts"], str(self.lab.dir / "ssh_config")
        flags = flags or ("--set", QUICK)
        return self.popen([*where, *flags, "--script", script, "--", fault, str(steps)], env=env, **how)

    def popen(self, args: list[str], **how: Any) -> Launch:
        """`distperf launch ARGS` here."""
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        command = [DISTPERF, "launch", *args]
        return Launch(self.folder, subprocess.Popen(command, cwd=self.folder, text=True, **{**pipes, **how}))

    def counting(self, fault: str = "none", steps: int = 10_000, *flags: str, **how: Any) -> Launch:
        """A run whose ranks have done ten steps."""
        run = self.start(fault, steps, *flags, **how)
        wait(lambda: all(log.count(b"\n") >= 10 for log in logs(run, 1)) and len(logs(run, 1)) == 2)
        return run

    def found(self, run: Launch, fell_t: float, noticed: Callable[[dict[str, Any]], bool]) -> Found:
        """Look at a run that has ended."""
        code, token = run.process.returncode, run.token()
        left = 0 if gone(token, within_s=1) else len(processes_of(token))
        status = run.status()
        failure = status["first_failure"] or {"cause": "", "message": ""}
        attempts = status["attempt"]
        lines = [line for line in metrics(run.run, "events.jsonl") if line["time"] > fell_t - 0.05]
        seen_t = next((line["time"] for line in lines if noticed(line)), float("nan"))
        again = logs(run, attempts)[0].split(b" ", 2)[1].decode() if attempts > 1 and code == 0 else ""
        hosts = [rank["host"] for rank in status["ranks"]]
        others = "" if hosts in (["localhost"] * 2, ["host1", "host2"]) else f" on {' and '.join(hosts)}"
        outcome = f"restarted at step {again}{others}, " if again else "went on, " if code == 0 else ""
        outcome += "`lost` in `status`" if code < 0 else f"exit code {code}"
        return Found(
            failure["cause"], failure["message"], max(0.0, seen_t - fell_t), outcome, code, attempts, left,
            sum(self._lost(run, n, rank) for n in range(1, attempts + 1) for rank in range(len(logs(run, n)))),
        )  # fmt: skip

    def _lost(self, run: Launch, attempt: int, rank: int) -> int:
        """Bytes that a rank has written and its log does not hold; what it holds must be what was written."""
        side = self.folder / f"written-{attempt}-{rank}"
        log = logs(run, attempt)[rank]
        own = [
            line
            for line in log.split(b"\n")[:-1]
            if line.startswith(b"line ") and line.endswith(b" %d" % rank)
        ]
        steps = [int(line.split()[1]) for line in own]
        assert not steps or steps == list(range(steps[0], steps[-1] + 1))
        return max(0, int(side.read_text()) - len(b"\n".join([*own, b""]))) if side.exists() else 0


def logs(run: Launch, attempt: int) -> list[bytes]:
    """The ranks' logs of an attempt; none before the run has a folder."""
    return [path.read_bytes() for path in sorted((run.run / "logs" / f"attempt-{attempt}").glob("rank-*"))]


def wait(holds: Callable[[], bool], within_s: float = 30) -> None:
    """Poll until something is so."""
    deadline = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline, "never came"
        time.sleep(0.02)


def is_event(*kinds: str) -> Callable[[dict[str, Any]], bool]:
    """Whether a line of the journal is of these kinds."""
    return lambda line: line["event"] in kinds


def is_out_of_reach(line: dict[str, Any]) -> bool:
    """The first line about a node that is not heard, or not connected, any more."""
    return line["event"] in ("LinkLost", "NodeLost") or "is unreachable" in line.get("text", "")


# What goes wrong. Each returns when the run has ended.


def of_itself(place: Place, fault: str, script: str = "count.py") -> Found:
    """A rank falls over its own program."""
    before_t = time.time()
    run = place.start(fault, script=script)
    run.end(within_s=60)
    fell = place.folder / "fell"
    exits = [line["time"] for line in metrics(run.run, "events.jsonl") if line["event"] == "RankExited"]
    fell_t = float(fell.read_text()) if fell.exists() else min(exits, default=before_t)
    return place.found(run, fell_t, is_event("RankExited"))


def leaves_early(place: Place) -> Found:
    """A rank of the bundled runtime exits with code 0 before the last step."""
    (place.folder / "sitecustomize.py").write_text(LEAVES_EARLY)
    (place.folder / "recipe.yaml").write_text(RECIPE % place.folder)
    run = place.popen(["recipe.yaml"])
    run.end(within_s=90)
    return place.found(run, float((place.folder / "fell").read_text()), is_event("RankExited"))


def out_of_memory(place: Place) -> Found:
    """The kernel kills a rank at the limit of a cgroup that the whole run is in."""
    group = CGROUP / f"distperf-faults-{os.getpid()}"
    group.mkdir()
    try:
        (group / "memory.limit_in_bytes").write_text(str(CGROUP_BYTES))
        run = place.start("memory", 150)
        (group / "cgroup.procs").write_text(str(run.process.pid))
        run.end(within_s=60)
        return place.found(run, float((place.folder / "fell").read_text()), is_event("RankExited"))
    finally:
        wait(lambda: not (group / "cgroup.procs").read_text())
        group.rmdir()


def agent_killed(place: Place) -> Found:
    """SIGKILL of a node's agent."""
    run = place.counting(steps=200)
    fell_t = time.time()
    if place.lab is None:
        psutil.Process(run.process.pid).children()[0].kill()
    else:
        place.lab.ssh(2, "pkill -KILL -o -f 'python3 -I -S -u -c'")
    run.end()
    return place.found(run, fell_t, is_out_of_reach)


def session_killed(place: Place) -> Found:
    """SIGKILL of sshd's process for the connection to a node."""
    assert place.lab is not None
    run = place.counting("none", 250, "--set", PATIENT)
    fell_t = time.time()
    place.lab.ssh(2, "pkill -KILL -f '^sshd: trainer'", user="root")
    run.end()
    return place.found(run, fell_t, is_out_of_reach)


def cut(place: Place, back: bool) -> Found:
    """A node's cable is pulled; it is plugged in again once the controller has noticed, or never."""
    assert place.lab is not None
    run = place.counting("none", 450 if back else 10_000, "--set", PATIENT if back else QUICK)
    fell_t = time.time()
    place.lab.testbed("cut", 2)
    try:
        if back:
            wait(lambda: any(is_out_of_reach(line) for line in metrics(run.run, "events.jsonl")))
            place.lab.testbed("mend", 2)
        run.end()
        return place.found(run, fell_t, is_out_of_reach)
    finally:
        place.lab.testbed("mend", 2)


def stopped(place: Place) -> Found:
    """SIGSTOP of a rank: it is there, and does nothing."""
    run = place.counting("none", 500, "--set", STALLING)
    fell_t = time.time()
    os.kill(run.status()["ranks"][1]["pid"], signal.SIGSTOP)
    run.end(within_s=60)
    return place.found(run, fell_t, is_event("Stalled"))


def blocked(place: Place) -> Found:
    """A rank waits for something that does not come."""
    run = place.start("blocked", 500, "--set", STALLING)
    run.end(within_s=60)
    return place.found(run, float((place.folder / "fell").read_text()), is_event("Stalled"))


def elsewhere(place: Place) -> Found:
    """A rank does not come to a collective, in which the others wait."""
    (place.folder / "meets.py").write_text(MEETS)
    run = place.start("none", 30, "--set", STALLING, script="meets.py")
    run.end(within_s=60)
    return place.found(run, float((place.folder / "fell").read_text()), is_event("Stalled"))


def powered_off(place: Place, allowed: str = "") -> Found:
    """A node loses power: no packet says so. allowed: what the recipe has for that."""
    assert place.lab is not None
    launch = QUICK.replace("}", f", {allowed}}}") if allowed else QUICK
    flags = ("--set", launch, "--ssh-option", "ConnectTimeout=2")  # how soon a try to get it back has failed
    run = place.counting("none", 500 if allowed else 10_000, *flags)
    fell_t = time.time()
    place.lab.testbed("off", 2)
    try:
        run.end()
        return place.found(run, fell_t, is_out_of_reach)
    finally:
        place.lab.testbed("boot", 2)


def signalled(place: Place, numbers: tuple[int, ...], fault: str = "none") -> Found:
    """The controller gets signals, one after the other."""
    run = place.counting(fault, 10_000, "--set", "launch.grace_s=20")
    fell_t = time.time()
    for nth, number in enumerate(numbers, start=1):
        run.process.send_signal(number)
        wait(
            lambda nth=nth: [x["event"] for x in metrics(run.run, "events.jsonl")].count("Interrupted") == nth
        )
    run.end(within_s=15)
    return place.found(run, fell_t, is_event("Interrupted"))


def controller_killed(place: Place) -> Found:
    """SIGKILL of the controller; noticed_s is the time until none of its processes is left anywhere."""
    run = place.counting()
    fell_t = time.time()
    run.process.kill()
    run.process.communicate()
    gone(run.token(), within_s=15)
    gone_s = time.time() - fell_t
    found = place.found(run, fell_t, is_event())
    return Found(**{**vars(found), "noticed_s": gone_s})


def terminal_closed(place: Place) -> Found:
    """The window that `launch` runs in is closed."""
    outer, inner = os.openpty()
    run = place.counting(
        "none", 10_000, "--quiet", stdin=inner, stdout=inner, stderr=inner, start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )  # fmt: skip
    os.close(inner)
    fell_t = time.time()
    os.close(outer)
    run.process.wait(timeout=15)
    return place.found(run, fell_t, is_event("Interrupted"))


@dataclass(frozen=True)
class Row:
    """A fault and what must come of it. loses: some output has nobody to bring it, and is counted."""

    name: str
    happen: Callable[[Place], Found]
    cause: str
    code: int
    attempts: int = 1
    message: str = ""
    lab: bool = False
    loses: bool = False


_INT, _TERM = signal.SIGINT, signal.SIGTERM
_BAD = "ValueError: bad lr (count.py:"
_LIMIT = "killed by the kernel: memory limit of its cgroup (400 MiB) reached"
ROWS = (
    Row("exception in a rank", partial(of_itself, fault="exception"), "exit", 0, 2, _BAD),
    Row("`sys.exit(3)` in a rank", partial(of_itself, fault="code"), "exit", 0, 2, "exited with code 3"),
    Row("`sys.exit(0)` too early (bundled runtime)", leaves_early, "exit", 1, 1, "before the last step"),
    Row("SIGKILL of a rank", partial(of_itself, fault="killed"), "signal", 0, 2, "killed by SIGKILL"),
    Row("SIGSEGV in a rank", partial(of_itself, fault="native"), "signal", 0, 2, "killed by SIGSEGV"),
    Row("import error on every rank", partial(of_itself, fault="import"), "import", 1, 1, "No module named"),
    Row("script that is not there", partial(of_itself, fault="none", script="no.py"), "exit", 1, 1, "can't open file"),
    Row("memory limit of a cgroup", out_of_memory, "oom", 0, 2, _LIMIT),
    Row("SIGKILL of the agent, this machine", agent_killed, "node_lost", 0, 2, "agent is gone", loses=True),
    Row("SIGKILL of an agent, over SSH", agent_killed, "node_lost", 0, 2, "agent is gone", lab=True),
    Row("ssh session killed", session_killed, "", 0, lab=True),
    Row("link cut, and back within the lease", partial(cut, back=True), "", 0, lab=True),
    Row("link cut for ever", partial(cut, back=False), "node_lost", 1, 1, "nothing heard", lab=True, loses=True),
    Row("host powered off", powered_off, "node_lost", 1, 1, "nothing heard", lab=True, loses=True),
    Row("host powered off, with a spare", partial(powered_off, allowed="spares: 1"), "node_lost", 0, 2, "nothing heard",
        lab=True, loses=True),
    Row("host powered off, `min_nodes: 1`", partial(powered_off, allowed="min_nodes: 1"), "node_lost", 0, 2,
        "nothing heard", lab=True, loses=True),
    Row("SIGSTOP of a rank", stopped, "stall", 0, 2, "stopped by a signal (SIGSTOP"),
    Row("a rank blocks (reads an empty FIFO)", blocked, "stall", 0, 2, "fall"),
    Row("a rank skips a collective", elsewhere, "stall", 0, 2, "goes_elsewhere"),
    Row("Ctrl-C", partial(signalled, numbers=(_INT,)), "", 130),
    Row("Ctrl-C twice, ranks ignore SIGTERM", partial(signalled, numbers=(_INT, _INT), fault="stubborn"), "", 130),
    Row("SIGTERM of the controller", partial(signalled, numbers=(_TERM,)), "", 143),
    Row("terminal closed", terminal_closed, "", 143),
    Row("SIGKILL of the controller, this machine", controller_killed, "", -9, loses=True),
    Row("SIGKILL of the controller, over SSH", controller_killed, "", -9, lab=True, loses=True),
)  # fmt: skip
