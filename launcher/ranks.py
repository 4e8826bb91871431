"""What events tell of ranks. Pure; a part of launcher.supervise."""

from __future__ import annotations

import dataclasses
from typing import Any

from launcher import attempts, failure, stall
from launcher.events import HeldUp, Progressed, RankExited, RankReported, RankStarted
from launcher.nodeset import expand_ranks
from launcher.state import RunState, Step, with_failure


def started(state: RunState, event: RankStarted) -> Step:
    """A rank's process exists; with the last one, the run runs."""
    state = _with_rank(state, event.rank, pid=event.pid, state="running")
    if state.state == "starting" and all(r.state != "pending" for r in reversed(state.ranks)):
        state = dataclasses.replace(state, state="running")
    return dataclasses.replace(state, pace=stall.wrote(state.pace)), ()


def reported(state: RunState, event: RankReported) -> Step:
    """A record of a rank."""
    record = event.record
    kind = record["kind"]
    if kind == "memory":
        memory = {k: v for k, v in record.items() if k.endswith("_bytes")}
        return _with_rank(state, event.rank, memory=memory), ()
    if kind == "phase":
        return _with_rank(state, event.rank, phase=str(record.get("phase"))), ()
    if kind == "error":
        return _with_rank(state, event.rank, error=record), ()
    if kind == "done":
        return _with_rank(state, event.rank, says_done=True, phase="done"), ()
    if kind == "event" and record.get("event") == "checkpoint":
        return dataclasses.replace(state, checkpoint=str(record.get("path"))), ()
    return state, ()


def progressed(state: RunState, event: Progressed) -> Step:
    """How far ranks are, as the journal has it."""
    steps = {rank: step for text, step in event.steps.items() for rank in expand_ranks(text)}
    ranks = tuple(dataclasses.replace(r, step=steps[r.rank]) if r.rank in steps else r for r in state.ranks)
    return dataclasses.replace(state, ranks=ranks), ()


def held_up(state: RunState, event: HeldUp) -> Step:
    """A stalled run has an answer, and ends as after any other failure."""
    return attempts.fail(state, failure.of_stall(state, state.ranks[event.rank]))


def exited(state: RunState, event: RankExited) -> Step:
    """A rank has ended: as it should, as it was told to, or as the failure of the attempt."""
    rank = state.ranks[event.rank]
    if rank.over:  # its node was given up before this came
        return state, ()
    clean = event.code == 0 and (state.policy.script or rank.says_done)
    if clean:
        state = dataclasses.replace(state, pace=stall.wrote(state.pace))
        return _with_rank(state, event.rank, state="done"), ()
    if state.state == "stopping" and state.failure is None:
        return _with_rank(state, event.rank, state="stopped"), ()
    state = _with_rank(state, event.rank, state="failed")
    if state.failure is not None:
        if event.rank == state.failure.rank:  # it stalled, and has been ended now
            return with_failure(state, dataclasses.replace(state.failure, log_tail=event.log_tail)), ()
        grace_over = state.t - state.failed_t >= state.policy.failed_grace_s
        first = failure.first_of(state.failure, failure.of_rank(rank, event), grace_over)
        blamed = (*state.failed_hosts[:-1], first.host)
        return dataclasses.replace(with_failure(state, first), failed_hosts=blamed), ()
    return attempts.fail(state, failure.of_rank(rank, event))


def _with_rank(run: RunState, number: int, /, **changes: Any) -> RunState:
    ranks = list(run.ranks)
    ranks[number] = dataclasses.replace(ranks[number], **changes)
    return dataclasses.replace(run, ranks=tuple(ranks))
