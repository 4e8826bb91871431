"""Ask the controller of a run for something, from any terminal of its owner on its machine."""

from __future__ import annotations

from typing import Any

from launcher import control
from launcher.errors import UsageError
from launcher.state import RunState

BUSY = "busy"


def ask_controller(state: RunState, do: str, **args: Any) -> dict[str, Any]:
    """Its answer; {BUSY: True} from one that has the request and has not answered in time.

    Raises UsageError with a sentence for the user: it cannot be asked from here, or will not do it.
    """
    path = state.controller.get("socket")
    if not path:
        raise UsageError("this run's controller cannot be asked: it has no control socket")
    try:
        answer = control.ask(path, do, **args)
    except (FileNotFoundError, ConnectionRefusedError):
        where = state.controller["host"]
        raise UsageError(
            f"the controller cannot be reached from here: ask on {where}, or it has ended"
        ) from None
    except TimeoutError:
        return {BUSY: True}
    except PermissionError:
        raise UsageError(f"run {state.run_id} belongs to another user") from None
    if "refused" in answer:
        raise UsageError(answer["refused"])
    return answer
