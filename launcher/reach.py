"""Reach hosts again whose link or agent is gone. On threads: the loop goes on hearing the others and the user."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from launcher import setup
from launcher.errors import SetupFailed, TransportError
from launcher.hostfile import Host
from launcher.nodes import Nodes
from launcher.plan import label
from launcher.setup import ANSWER_S, UNCHANGED, Changes, Setup
from launcher.state import RunState

RELINK_PAUSE_S = 0.5
REOPEN_PAUSE_S = 0.5  # and twice as long after each try that fails,
MAX_REOPEN_PAUSE_S = 30.0  # up to this: a machine may be back from repair in an hour


@dataclass(frozen=True)
class Reopened:
    """error None: a fresh agent answers, and launch.setup was run. Else the first try has failed, and others follow."""

    error: str | None
    changes: Changes = UNCHANGED


@dataclass(frozen=True)
class Relinked:
    """found False: the agent is dead."""

    found: bool


class Reach:
    """Puts what comes of it into the inbox of `nodes`. A host has one thread at a time: the next waits for its end."""

    def __init__(self, nodes: Nodes, state: Callable[[], RunState], setup: Setup, workdir: str) -> None:
        self._nodes = nodes
        self._state = state
        self._setup = setup
        self._workdir = workdir
        self._busy: dict[str, threading.Thread] = {}

    def relink(self, host: Host, run_id: str, token: str) -> None:
        """Find the agent again, until it works or the node is given up."""
        self._begin(host, lambda: self._relink(host, run_id, token))

    def reopen(self, host: Host) -> None:
        """Start a fresh agent, until it works or the run is over."""
        self._begin(host, lambda: self._reopen(host))

    def _begin(self, host: Host, work: Callable[[], None]) -> None:
        before = self._busy.get(label(host))

        def run() -> None:
            if before is not None:
                before.join()
            work()

        self._busy[label(host)] = thread = threading.Thread(target=run, daemon=True)
        thread.start()

    def _relink(self, host: Host, run_id: str, token: str) -> None:
        while label(host) in self._state().cut and not self._state().over:
            try:
                found = self._nodes.reopen(host, run_id, token)
            except TransportError:
                time.sleep(RELINK_PAUSE_S)
                continue
            self._nodes.inbox.put((label(host), Relinked(found)))
            return

    def _reopen(self, host: Host) -> None:
        self._nodes.drop(label(host))  # an agent that was found at the last moment is of no use any more
        pause_s, told = REOPEN_PAUSE_S, False
        while label(host) in self._state().lost and not self._state().over:
            try:
                changes = self._open(host)
            except TransportError as error:
                if not told:
                    self._nodes.inbox.put((label(host), Reopened(error.reason)))
                told = True
                time.sleep(pause_s)
                pause_s = min(MAX_REOPEN_PAUSE_S, 2 * pause_s)
                continue
            self._nodes.inbox.put((label(host), Reopened(None, changes)))
            return

    def _open(self, host: Host) -> Changes:
        if not self._setup.lines:
            self._nodes.open(host)
            return UNCHANGED
        question = self._setup.question(host.workdir or self._workdir, f"setup-{secrets.token_hex(8)}")
        answer = self._nodes.open_and_ask(host, "setup", question, ANSWER_S)
        why = answer.error or setup.problem(self._setup, answer.value)
        if why is not None:
            self._nodes.drop(label(host))
            raise SetupFailed(label(host), why)
        return setup.changes(answer.value)
