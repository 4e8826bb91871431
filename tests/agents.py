"""A real agent over the local transport, driven by hand, and what it leaves on the machine."""

from __future__ import annotations

import glob
import os
import queue
import secrets
import sys
import tempfile
import threading
import time
from collections.abc import Iterable
from typing import Any

from launcher import protocol
from launcher.agent import processes
from launcher.hostfile import Host
from launcher.protocol import Answer, Configure, Exited, Idle, LogBytes, Start, Started
from launcher.transport.channel import Channel, Closed
from launcher.transport.local import LocalTransport

LIMIT_S = 30.0


class LiveAgent:
    """One agent of a run of its own. As a context it says Bye at the end and proves that nothing is left."""

    def __init__(self, lease_s: float = 25.0, grace_s: float = 5.0, heartbeat_s: float = 0.2) -> None:
        self.run_id = f"test-{secrets.token_hex(4)}"
        self.token = f"{self.run_id}-token"
        self.inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.seen: list[Any] = []
        self.hold_logs = threading.Event()  # cleared: log bytes are not taken in, and pile up at the agent
        self.hold_logs.set()
        self.channel = Channel("localhost", LocalTransport().connect(Host("localhost", (0,))), self._deliver)
        self.facts = self.channel.greet().facts
        self.channel.start()
        self.channel.send(Configure(protocol.VERSION, self.run_id, self.token, lease_s, grace_s, heartbeat_s))

    def _deliver(self, channel: Channel, message: Any) -> None:
        if isinstance(message, LogBytes):
            self.hold_logs.wait(LIMIT_S)
        self.inbox.put((time.monotonic(), message))

    def __enter__(self) -> LiveAgent:
        return self

    def __exit__(self, *raised: object) -> None:
        if not any(isinstance(message, Closed) for _, message in self.seen):
            self.channel.send(protocol.Stop(1, 0.0))
            self.channel.send(protocol.Bye())
            self.wait(Closed)
        self.channel.close()
        if raised[0] is None:
            assert self.left() == []
            assert self.spools() == []

    def left(self) -> list[int]:
        """Processes of the run that are still here."""
        return processes.with_token(self.token)

    def gone_within(self, limit_s: float) -> bool:
        """No process of the run is left, at the latest after limit_s."""
        deadline = time.monotonic() + limit_s
        while self.left():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        return True

    def spools(self) -> list[str]:
        return glob.glob(os.path.join(tempfile.gettempdir(), f"distperf-{self.run_id}-*"))

    def start(self, *codes: str, **more: Any) -> None:
        """Ranks that run Python code."""
        self.start_argv(*([sys.executable, "-c", code] for code in codes), **more)

    def start_argv(
        self,
        *argvs: list[str],
        env: dict[str, str] | None = None,
        cwd: str = "/",
        attempt: int = 1,
        warm: dict[str, Any] | None = None,
        **more: Any,
    ) -> None:
        own = {**(env or {}), "DISTPERF_JOB_TOKEN": self.token}
        ranks = [
            {"rank": n, "local_rank": n, "argv": argv, "env": own, "cwd": cwd, **more}
            for n, argv in enumerate(argvs)
        ]
        self.channel.send(Start(attempt, ranks, warm))

    def ask(self, question: str, **args: Any) -> Answer:
        """A question's answer."""
        self.channel.send(protocol.Ask(1, question, args))
        answer: Answer = self.wait(Answer)
        return answer

    def wait(self, kind: type[Any], limit_s: float = LIMIT_S) -> Any:
        """The next message of a kind; all that came before it is in `seen`."""
        deadline = time.monotonic() + limit_s
        while True:
            t, message = self.inbox.get(timeout=max(0.01, deadline - time.monotonic()))
            self.seen.append((t, message))
            if isinstance(message, kind):
                return message

    def to_idle(self) -> list[Exited]:
        """Wait until nothing is left of the attempt; how each rank ended, in order of receipt."""
        self.wait(Idle)
        return self.got(Exited)

    def got(self, kind: type[Any]) -> list[Any]:
        return [message for _, message in self.seen if isinstance(message, kind)]

    def log(self, rank: int = 0) -> bytes:
        """What a rank wrote, as far as it has come: every piece begins where the one before ended."""
        data = b""
        for piece in self.got(LogBytes):
            if piece.rank == rank:
                assert piece.offset == len(data)
                data += piece.data
        return data

    def wait_log(self, text: bytes, rank: int = 0) -> None:
        """Wait until a rank has written `text`."""
        while text not in self.log(rank):
            self.wait(LogBytes)

    def pids(self) -> list[int]:
        return [started.pid for started in self.got(Started)]


def alive(pids: Iterable[int]) -> list[int]:
    """Those of the processes that have not ended."""
    found = []
    for pid in pids:
        try:
            with open(f"/proc/{pid}/stat") as file:
                if file.read().rpartition(")")[2].split()[0] != "Z":
                    found.append(pid)
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found
