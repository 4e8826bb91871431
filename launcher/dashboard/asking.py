"""What the dashboard asks of the run's controller, over its control socket: from any terminal of the owner."""

from __future__ import annotations

from launcher import control
from launcher.errors import UsageError
from launcher.rundir import RunDir
from launcher.state import RunState
from launcher.stop import ask_to_stop


def stop(run: RunDir) -> str:
    """Ask it to end the run in order; returns what to tell the user."""
    try:
        ask_to_stop(run)
    except UsageError as error:
        return str(error)
    return "asked: ranks get SIGTERM and their grace; once more ends them now"


def stacks(state: RunState) -> str:
    """Ask it to take the stacks of all ranks; returns what to tell the user."""
    path = state.controller.get("socket")
    if not path:
        return "this run's controller cannot be asked: it has no control socket"
    try:
        control.ask(path, "stacks")
    except (FileNotFoundError, ConnectionRefusedError):
        return "the controller cannot be reached from here: ask on its machine, or it has ended"
    except TimeoutError:
        return "the controller is busy; it has the request"
    except PermissionError as error:
        return str(error)
    return "asked: stacks come within a few seconds, into the view of each rank"
