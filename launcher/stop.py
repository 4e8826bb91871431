"""`distperf stop`: the controller is asked by the signal that Ctrl-C sends; the kernel checks who may."""

from __future__ import annotations

import os
import signal
import socket
import time

from launcher.errors import LauncherError, UsageError
from launcher.journal import replay
from launcher.rundir import RunDir
from launcher.state import RunState
from launcher.view import controller_lives

LOOK_S = 0.1
BEYOND_GRACE_S = 30.0


def stop_run(run: RunDir) -> str:
    """Stop the run and wait for its end; returns a sentence. Raises UsageError when it cannot be done from here."""
    state = replay(run)
    if state.over:
        return f"run {state.run_id} has already ended ({state.state})"
    controller = state.controller
    if controller["host"] != socket.gethostname():
        raise UsageError(f"run {state.run_id} is led from {controller['host']}: stop it there")
    if not controller_lives(run, state):
        lease_s = state.policy.lease_s
        return (
            f"the controller of run {state.run_id} is dead; its ranks end themselves within {lease_s:.0f} s"
        )
    try:
        os.kill(controller["pid"], signal.SIGINT)
    except PermissionError:
        raise UsageError(f"run {state.run_id} belongs to another user") from None
    except ProcessLookupError:  # it ended just now
        pass
    return _wait(run, state)


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
