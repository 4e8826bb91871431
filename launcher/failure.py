"""Why an attempt failed, from what was seen of the one that fell first. Pure."""

from __future__ import annotations

import re
from dataclasses import replace

from distperf.contract import EXIT_TERMINATED
from launcher import stacks, words
from launcher.crash import crash_in
from launcher.events import NodeLost, RankExited
from launcher.stacks import Place
from launcher.state import Failure, Rank, RunState

# What the next attempt would find again: a module or line of code that is not as it should be, ...
IMPORT_ERRORS = {"ImportError", "ModuleNotFoundError"}
CODE_ERRORS = IMPORT_ERRORS | {"SyntaxError", "IndentationError", "TabError"}
# ... and what distperf itself raises for a recipe, data or a checkpoint (distperf.errors).
FINAL_ERRORS = CODE_ERRORS | {
    "RecipeError", "BatchError", "MeshError", "ModelError", "DataError", "CheckpointError", "CheckpointMissing",
    "CheckpointCorrupt",
}  # fmt: skip

# What torch and Python raise where an allocation fails: devices do not kill.
MEMORY_ERRORS = {"OutOfMemoryError", "torch.OutOfMemoryError", "torch.cuda.OutOfMemoryError", "MemoryError"}
_NO_MEMORY = re.compile(r"DefaultCPUAllocator: (can't|not enough)")

MAX_OTHERS = 3  # places of other ranks that a message names; the report has all

SIGNAL_HINTS = {
    "SIGKILL": " (by a person, or by the kernel when memory ran out: look at dmesg on that host)",
    "SIGSEGV": " (a crash in native code)",
    "SIGBUS": " (often a full /dev/shm or a file that became shorter)",
}


_ECHO = re.compile(
    r"gloo|NCCL|connection (closed|reset|refused)|closed by peer|remote (peer|process|worker)|broken pipe|TCPStore|"
    r"Dist\w+Error",
    re.IGNORECASE,
)


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
        message = f"{kind}: {error.get('message', '')}"
        cause = _cause(kind, message)
    elif (crash := crash_in(event.log_tail, event.code)) is not None:
        cause, message, traceback = _cause(crash.kind, str(crash)), str(crash), crash.traceback
        final = crash.kind in CODE_ERRORS or crash.traceback is None
    elif event.signal:
        cause, message = "signal", f"killed by {event.signal}" + SIGNAL_HINTS.get(event.signal, "")
    elif event.code == 0:
        cause, message = "exit", "exited with code 0 before the last step was done"
    elif event.code == EXIT_TERMINATED:
        cause, message = "exit", f"exited with code {event.code}: some rank got SIGTERM"
    else:
        cause, message = "exit", f"exited with code {event.code}"
    return Failure(
        host=rank.host, rank=rank.rank, cause=cause, exit_code=event.code, signal=event.signal, message=message,
        traceback=traceback, log_tail=event.log_tail, pid=rank.pid, attempt=event.attempt,
        step=rank.step, retry=not final,
    )  # fmt: skip


def first_of(first: Failure, later: Failure, grace_over: bool) -> Failure:
    """The first that was heard of is the answer, but for one: a rank that only felt another one go, heard of sooner."""
    assert later.rank is not None
    if first.rank is not None and _is_echo(first) and _explains(later, grace_over):
        return replace(later, followers=(*first.followers, first.rank))
    return replace(first, followers=(*first.followers, later.rank))


def _is_echo(failure: Failure) -> bool:
    """It says no more than that another rank was gone: what gloo, NCCL and torch's store raise then."""
    return failure.cause == "exit" and _ECHO.search(failure.message) is not None


def _explains(later: Failure, grace_over: bool) -> bool:
    """No echo either, and no answer to our own SIGTERM, or our SIGKILL after the grace."""
    if _is_echo(later) or later.signal in ("SIGTERM", "SIGINT") or (later.signal == "SIGKILL" and grace_over):
        return False
    return later.cause != "exit" or later.traceback is not None


def of_node(event: NodeLost, attempt: int, step: int) -> Failure:
    """The node itself is gone; its ranks are not to blame."""
    return Failure(
        host=event.host, rank=None, cause="node_lost", exit_code=None, signal=None, message=event.why,
        traceback=None, log_tail="", attempt=attempt, step=step,
    )  # fmt: skip


def _cause(kind: str, message: str) -> str:
    if kind in MEMORY_ERRORS or _NO_MEMORY.search(message):
        return "oom"
    return "import" if kind in IMPORT_ERRORS else "exit"


def of_stall(state: RunState, rank: Rank) -> Failure:
    """The rank that a stalled run waits for, and where the others wait."""
    assert state.stalled is not None
    places = places_of(state)
    own = places[rank.rank]
    groups = [([r for r in ranks if r != rank.rank], place) for ranks, place in stacks.fold(places)]
    others = [f"{words.ranks(ranks)}: {place.sentence}" for ranks, place in groups if ranks]
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
