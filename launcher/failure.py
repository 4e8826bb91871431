"""Why an attempt failed, from what was seen of the one that fell first. Pure."""

from __future__ import annotations

from launcher import stacks
from launcher.events import NodeLost, RankExited
from launcher.nodeset import fold_numbers
from launcher.stacks import Place
from launcher.state import Failure, Rank, RunState

# Raised by distperf itself for what a restart does not mend (distperf.errors), and Python's own of that kind.
FINAL_ERRORS = {
    "RecipeError", "BatchError", "MeshError", "DataError", "CheckpointError", "CheckpointMissing",
    "CheckpointCorrupt", "ImportError", "ModuleNotFoundError", "SyntaxError",
}  # fmt: skip

MAX_OTHERS = 3  # places of other ranks that a message names; the report has all

SIGNAL_HINTS = {
    "SIGKILL": " (by a person, or by the kernel when memory ran out: look at dmesg on that host)",
    "SIGSEGV": " (a crash in native code)",
    "SIGBUS": " (often a full /dev/shm or a file that became shorter)",
}


def of_rank(rank: Rank, event: RankExited) -> Failure:
    """The rank's own word (its error record) first, then why it did not start, its signal, its exit code."""
    error = rank.error or {}
    kind = str(error.get("type", ""))
    if event.error:
        cause, message = "connect", event.error
    elif error:
        cause = "import" if kind in ("ImportError", "ModuleNotFoundError") else "exit"
        message = f"{kind}: {error.get('message', '')}"
    elif event.signal:
        cause, message = "signal", f"killed by {event.signal}" + SIGNAL_HINTS.get(event.signal, "")
    elif event.code == 0:
        cause, message = "exit", "exited with code 0 before the last step was done"
    else:
        cause, message = "exit", f"exited with code {event.code}"
    return Failure(
        host=rank.host, rank=rank.rank, cause=cause, exit_code=event.code, signal=event.signal, message=message,
        traceback=error.get("traceback"), log_tail=event.log_tail, pid=rank.pid, attempt=event.attempt,
        step=rank.step, retry=not event.error and kind not in FINAL_ERRORS,
    )  # fmt: skip


def of_node(event: NodeLost, attempt: int, step: int) -> Failure:
    """The node itself is gone; its ranks are not to blame."""
    return Failure(
        host=event.host, rank=None, cause="node_lost", exit_code=None, signal=None, message=event.why,
        traceback=None, log_tail="", attempt=attempt, step=step,
    )  # fmt: skip


def of_stall(state: RunState, rank: Rank) -> Failure:
    """The rank that a stalled run waits for, and where the others wait."""
    assert state.stalled is not None
    places = places_of(state)
    own = places[rank.rank]
    groups = [([r for r in ranks if r != rank.rank], place) for ranks, place in stacks.fold(places)]
    others = [f"ranks {fold_numbers(ranks)}: {place.sentence}" for ranks, place in groups if ranks]
    what = (
        f"has not finished step {rank.step + 1}" if rank.step or not state.policy.script else "stands still"
    )
    return Failure(
        host=rank.host, rank=rank.rank, cause="stall", exit_code=None, signal=None,
        message="; ".join([f"{what}, {own.sentence} ({state.stalled.why})", *others[:MAX_OTHERS]]),
        traceback="\n".join(own.frames) or None, log_tail="", pid=rank.pid, attempt=state.attempt, step=rank.step,
        stacks=tuple(stacks.groups(places)),
    )  # fmt: skip


def places_of(state: RunState) -> dict[int, Place]:
    """Where each rank of a stalled run that has not ended is."""
    assert state.stalled is not None
    looks = state.stalled.looks
    return {
        rank.rank: stacks.place(looks[rank.rank]) if rank.rank in looks else stacks.UNKNOWN
        for rank in state.ranks
        if not rank.over
    }
