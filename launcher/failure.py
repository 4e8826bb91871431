"""Why an attempt failed, from what was seen of the one that fell first. Pure."""

from __future__ import annotations

from launcher.crash import crash_in
from launcher.events import NodeLost, RankExited
from launcher.state import Failure, Rank

# What the next attempt would find again: a module or line of code that is not as it should be, ...
IMPORT_ERRORS = {"ImportError", "ModuleNotFoundError"}
CODE_ERRORS = IMPORT_ERRORS | {"SyntaxError", "IndentationError", "TabError"}
# ... and what distperf itself raises for a recipe, data or a checkpoint (distperf.errors).
FINAL_ERRORS = CODE_ERRORS | {
    "RecipeError", "BatchError", "MeshError", "DataError", "CheckpointError", "CheckpointMissing",
    "CheckpointCorrupt",
}  # fmt: skip

SIGNAL_HINTS = {
    "SIGKILL": " (by a person, or by the kernel when memory ran out: look at dmesg on that host)",
    "SIGSEGV": " (a crash in native code)",
    "SIGBUS": " (often a full /dev/shm or a file that became shorter)",
}


def of_rank(rank: Rank, event: RankExited) -> Failure:
    """What the kernel says, the rank's own word (its error record), why it did not start, its last lines, its end."""
    error = rank.error or {}
    kind, traceback = str(error.get("type", "")), error.get("traceback")
    final = kind in FINAL_ERRORS
    if event.error:
        cause, message, final = "connect", event.error, True
    elif event.oom:
        cause, message = "oom", event.oom
    elif error:
        cause, message = _cause(kind), f"{kind}: {error.get('message', '')}"
    elif (crash := crash_in(event.log_tail, event.code)) is not None:
        cause, message, traceback = _cause(crash.kind), str(crash), crash.traceback
        final = crash.kind in CODE_ERRORS or crash.traceback is None
    elif event.signal:
        cause, message = "signal", f"killed by {event.signal}" + SIGNAL_HINTS.get(event.signal, "")
    elif event.code == 0:
        cause, message = "exit", "exited with code 0 before the last step was done"
    else:
        cause, message = "exit", f"exited with code {event.code}"
    return Failure(
        host=rank.host, rank=rank.rank, cause=cause, exit_code=event.code, signal=event.signal, message=message,
        traceback=traceback, log_tail=event.log_tail, pid=rank.pid, attempt=event.attempt,
        step=rank.step, retry=not final,
    )  # fmt: skip


def of_node(event: NodeLost, attempt: int, step: int) -> Failure:
    """The node itself is gone; its ranks are not to blame."""
    return Failure(
        host=event.host, rank=None, cause="node_lost", exit_code=None, signal=None, message=event.why,
        traceback=None, log_tail="", attempt=attempt, step=step,
    )  # fmt: skip


def _cause(kind: str) -> str:
    return "import" if kind in IMPORT_ERRORS else "exit"
