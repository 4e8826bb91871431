"""What the ranks of this node are doing right now, found out without ending one of them.

A rank that keeps the contract (distperf.contract) has a file for its stacks: SIGUSR2 makes Python's faulthandler write
its main thread's there, even while the interpreter is blocked in native code. Whether the handler is really there
is asked of the kernel first, since the signal would end any other process. The bundled runtime also reads requests
from a FIFO beside it, and answers with what torch's flight recorder has of collectives.
"""

import json
import os
import signal
from typing import Any, Dict, List, Optional

MAX_STACK_BYTES = 64 << 10
LIMIT_S = 3.0
QUIET_S = 0.15  # a stack that has not grown for this long is written

ANSWER, ASK = ".collectives", ".ask"  # beside the file of stacks; distperf.contract has them too
NO_HANDLER = (
    "no stack: the script's process has no handler; call distperf.report once, or set launch.warm_start: true"
)


class Look:
    """One rank that is being looked at. A stopped one cannot answer, and is not waited for."""

    def __init__(self, pid: int, stack_file: str) -> None:
        self._file = stack_file
        self._begin = self._size = size_of(stack_file)
        self._grown_at: Optional[float] = None
        self.value: Dict[str, Any] = {"state": state_of(pid), "wait": waits_in(pid), "stack": "", "note": ""}
        awake = self.value["state"] not in ("T", "t", "Z", "")
        self._signalled = awake and os.path.exists(stack_file) and catches(pid, signal.SIGUSR2)
        self._asked = awake and ask(stack_file, "?")
        if self._signalled:
            os.kill(pid, signal.SIGUSR2)
            kernel = "state %s in %s" % (self.value["state"], self.value["wait"] or "the kernel")
            self.value["note"] = "no stack: the process did not answer (%s)" % kernel
        elif awake:
            self.value["note"] = NO_HANDLER

    def over(self, now: float) -> bool:
        """Whether all that was asked for is there."""
        size = size_of(self._file)
        if size != self._size:
            self._size, self._grown_at = size, now
        written = self._grown_at is not None and now - self._grown_at >= QUIET_S
        return (written or not self._signalled) and (not self._asked or os.path.exists(self._file + ANSWER))

    def finish(self) -> Dict[str, Any]:
        """What came, as far as it did."""
        if self._size > self._begin:
            with open(self._file, "rb") as file:
                file.seek(max(self._begin, self._size - MAX_STACK_BYTES))
                self.value["stack"] = file.read(MAX_STACK_BYTES).decode("utf-8", "replace")
            self.value["note"] = ""
        self.value["collectives"] = read_json(self._file + ANSWER) if self._asked else []
        return self.value


class Looks:
    """All ranks of this node that are being looked at."""

    def __init__(self, files: Dict[int, Any], now: float) -> None:
        """files: rank -> (pid, file for its stacks) of those that have not ended."""
        self._looks = {rank: Look(*found) for rank, found in files.items()}
        self._deadline = now + LIMIT_S

    def over(self, now: float) -> bool:
        """Whether there is nothing more to wait for."""
        return now >= self._deadline or all([look.over(now) for look in self._looks.values()])

    def finish(self) -> Dict[str, Dict[str, Any]]:
        """What was seen, by rank."""
        return {str(rank): look.finish() for rank, look in self._looks.items()}


def state_of(pid: int) -> str:
    """The kernel's letter for a process's state: R, S, D, T (stopped), t (traced), Z; empty when it is gone."""
    return _proc(pid, "stat").rpartition(")")[2].strip()[:1]


def waits_in(pid: int) -> str:
    """The kernel function that a process waits in, where the kernel tells."""
    name = _proc(pid, "wchan").strip()
    return "" if name == "0" else name


def catches(pid: int, number: int) -> bool:
    """Whether a process has a handler for a signal."""
    for line in _proc(pid, "status").split("\n"):
        if line.startswith("SigCgt:"):
            return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


def _proc(pid: int, name: str) -> str:
    try:
        with open("/proc/%d/%s" % (pid, name), errors="replace") as file:
            return file.read()
    except OSError:  # ended meanwhile, or not ours to read
        return ""


def size_of(path: str) -> int:
    """Bytes of a file; 0 when there is none."""
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def ask(stack_file: str, request: str) -> bool:
    """Ask something of a rank (distperf.requests); False when nobody there reads requests."""
    try:
        fd = os.open(stack_file + ASK, os.O_WRONLY | os.O_NONBLOCK)
    except OSError:  # no such file, or nobody who reads it
        return False
    try:
        os.write(fd, request.encode() + b"\n")
    except OSError:  # full of requests that it has not read
        return False
    finally:
        os.close(fd)
    return True


def read_json(path: str) -> List[Any]:
    """A list that a rank has written; empty when it is none."""
    try:
        with open(path, "rb") as file:
            value = json.loads(file.read().decode("utf-8", "replace"))
    except (OSError, ValueError, RecursionError):
        return []
    return value if isinstance(value, list) else []
