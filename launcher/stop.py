"""`distperf stop`: the controller is asked by its socket, or by the signal that Ctrl-C sends where it has none."""

from __future__ import annotations

import os
import signal
import socket
import time

from distperf import contract
from launcher import control
from launcher.errors import LauncherError, UsageError
from launcher.journal import replay
from launcher.rundir import RunDir
from launcher.slurm import queue
from launcher.state import RunState
from launcher.view import controller_lives

LOOK_S = 0.1
BEYOND_GRACE_S = 30.0


def stop_run(run: RunDir, now: bool) -> str:
    """Stop the run and wait for its end; returns a sentence. Raises UsageError when it cannot be done from here."""
    job = queue.job_of(run)
    if job is not None and (said := _stop_job(run, job[0])) is not None:
        return said
    state = replay(run)
    if state.over:
        return f"run {state.run_id} has already ended ({state.state})"
    if _is_here(state) and not controller_lives(run, state):
        lease_s = state.policy.lease_s
        return (
            f"the controller of run {state.run_id} is dead; its ranks end themselves within {lease_s:.0f} s"
        )
    ask_to_stop(run, now)
    return _wait(run, state)


def _stop_job(run: RunDir, key: str) -> str | None:
    """A run that waits in SLURM's queue is taken out of it; None where it is no such run."""
    if run.events.exists() and not _waits_again(run, key):
        return None
    queue.cancel(key)
    return f"job {key} of run {run.run_id} is cancelled"


def _waits_again(run: RunDir, key: str) -> bool:
    """Its job ended before the run did, and is queued again."""
    state = replay(run)
    unfinished = (contract.EXIT_PREEMPTED, contract.EXIT_TERMINATED)
    ended = state.exit_code in unfinished if state.over else not controller_lives(run, state)
    return ended and queue.look(key).waits


def ask_to_stop(run: RunDir, now: bool = False) -> None:
    """Ask the run's controller to end it: in order, or `now`; what was asked before makes it "now" as well.

    Raises UsageError when it cannot be done from here.
    """
    state = replay(run)
    job = queue.job_of(run)
    if not _is_here(state) and job is not None:
        (queue.cancel if now else queue.interrupt)(job[0])
        return
    if not _is_here(state):
        raise UsageError(f"run {state.run_id} is led from {state.controller['host']}: stop it there")
    path = state.controller.get("socket")
    try:
        if path is None:
            _interrupt(run, now)
        else:
            control.ask(path, "kill" if now else "stop")
    except (FileNotFoundError, ConnectionRefusedError):
        _interrupt(run, now)
    except TimeoutError:  # busy or suspended: the request waits for it
        pass
    except PermissionError:
        raise UsageError(f"run {state.run_id} belongs to another user") from None


def _is_here(state: RunState) -> bool:
    return bool(state.controller["host"] == socket.gethostname())


def _interrupt(run: RunDir, now: bool) -> None:
    """Once is in order, twice is at once. Raises PermissionError."""
    for _ in range(2 if now else 1):
        state = replay(run)
        if state.over or not controller_lives(run, state):  # the pid may be another's by now
            return
        try:
            os.kill(state.controller["pid"], signal.SIGINT)
        except ProcessLookupError:  # it ended just now
            return
        time.sleep(LOOK_S)


def _wait(run: RunDir, state: RunState) -> str:
    deadline = time.monotonic() + state.policy.grace_s + BEYOND_GRACE_S
    while time.monotonic() < deadline:
        state = replay(run)
        if state.over or not controller_lives(run, state):
            return f"run {state.run_id} has ended ({state.state})"
        time.sleep(LOOK_S)
    raise LauncherError(
        f"run {state.run_id} has not ended {BEYOND_GRACE_S:.0f} s after its grace; see its journal"
    )
