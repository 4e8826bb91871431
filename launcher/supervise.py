"""advance(state, event) -> (state, actions): every decision about a running run, and nothing else. Pure.

    queued -> starting -> running -> stopping -> restarting -> starting ...
                           |   |     ^   |
                           |   v     |   v
                           | stalled-   failed | stopped
                           v
                        finished

Alive and progressing are two clocks: an agent's messages say that a node is there (`heard`), steps say that the run
moves (launcher.stall). Before a stalled attempt is ended, its ranks' stacks are taken. The first failure that the
controller receives is the answer; what follows in the same attempt is collateral.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Any, TypeVar

from distperf import contract
from launcher import events, failure, progress, restart, stall
from launcher.actions import (
    Action,
    Finish,
    GiveUp,
    Note,
    PickPort,
    Place,
    Relink,
    Reopen,
    StartRanks,
    StopRanks,
    TakeStacks,
    Write,
)
from launcher.allot import Member
from launcher.events import (
    AttemptBegan,
    Ended,
    Event,
    Heard,
    HeldUp,
    Interrupted,
    LinkBack,
    LinkLost,
    NodeBack,
    NodeIdle,
    NodeLost,
    Noted,
    Placed,
    PortPicked,
    Progressed,
    RankExited,
    RankReported,
    RankStarted,
    ReopenFailed,
    Restarting,
    RunCreated,
    StacksTaken,
    Stepped,
    Tick,
    Unplaceable,
    Wrote,
)
from launcher.nodeset import expand_ranks
from launcher.stall import Pace
from launcher.state import Failure, Policy, Rank, RunState

Step = tuple[RunState, tuple[Action, ...]]
T = TypeVar("T")


def created(event: RunCreated) -> RunState:
    """The state that a run's first event gives."""
    ranks = tuple(Rank(**rank) for rank in event.ranks)
    slots = Counter(rank.host for rank in ranks)  # in node order
    pool = tuple(Member(**member) for member in event.pool)
    return RunState(
        event.run_id, event.name, Policy(**event.policy), ranks, event.steps, event.controller, t=event.t,
        pool=pool or tuple(Member(*item) for item in slots.items()), places=tuple(slots),
    )  # fmt: skip


def begin(state: RunState) -> Step:
    """Enter the next attempt: the first one and a restart alike."""
    event = AttemptBegan(state.t, state.attempt + 1)
    return _attempt_began(state, event)[0], (Write(event), PickPort())


def advance(state: RunState, event: Event) -> Step:
    """The next state and what is to be done now."""
    if state.over:
        return state, ()
    state, actions = observe(state, event)
    state, later = _decide(state)
    return state, actions + later


def observe(state: RunState, event: Event) -> Step:
    """Take in one event. Replaying a journal is this alone: decisions are in it as events of their own."""
    if event.t > state.t:
        state = dataclasses.replace(state, t=event.t)
    if getattr(event, "attempt", state.attempt) != state.attempt and not isinstance(event, AttemptBegan):
        return state, ()  # a late word of an attempt that is over
    if getattr(event, "rank", -1) >= len(state.ranks):
        return state, ()  # or of a rank that there was before nodes became fewer
    handler = _HANDLERS.get(type(event))
    return handler(state, event) if handler else (state, ())


def _attempt_began(state: RunState, event: AttemptBegan) -> Step:
    ranks = tuple(Rank(r.rank, r.local_rank, r.host, r.node_rank, r.coordinates) for r in state.ranks)
    here = dict.fromkeys((m.host for m in state.pool if m.host not in state.lost), event.t)
    heard = {**here, **state.heard}  # one that says nothing from now on is silent
    rank_hosts = {**state.rank_hosts, event.attempt: tuple(rank.host for rank in ranks)}
    return dataclasses.replace(
        state, ranks=ranks, attempt=event.attempt, state="starting", began_t=event.t, rank_hosts=rank_hosts,
        heard=heard, idle=frozenset(), failure=None, restart_at=None, asked=None,
        pace=Pace(event.t), stalled=None,
    ), ()  # fmt: skip


def _port_picked(state: RunState, event: PortPicked) -> Step:
    if state.state != "starting":
        return state, ()
    state = dataclasses.replace(state, in_flight=True)
    return state, (StartRanks(event.attempt, event.address, event.port),)


def _rank_started(state: RunState, event: RankStarted) -> Step:
    state = _with_rank(state, event.rank, pid=event.pid, state="running")
    if state.state == "starting" and all(r.state != "pending" for r in reversed(state.ranks)):
        state = dataclasses.replace(state, state="running")
    return dataclasses.replace(state, pace=stall.wrote(state.pace)), ()


def _reported(state: RunState, event: RankReported) -> Step:
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


def _progressed(state: RunState, event: Progressed) -> Step:
    steps = {rank: step for text, step in event.steps.items() for rank in expand_ranks(text)}
    ranks = tuple(dataclasses.replace(r, step=steps[r.rank]) if r.rank in steps else r for r in state.ranks)
    return dataclasses.replace(state, ranks=ranks), ()


def _held_up(state: RunState, event: HeldUp) -> Step:
    return _fail(state, failure.of_stall(state, state.ranks[event.rank]))


def _rank_exited(state: RunState, event: RankExited) -> Step:
    rank = state.ranks[event.rank]
    if rank.over:  # its node was given up before this came
        return state, ()
    clean = event.code == 0 and (state.policy.script or rank.says_done)
    if clean:
        return _with_rank(state, event.rank, state="done"), ()
    if state.state == "stopping" and state.failure is None:
        return _with_rank(state, event.rank, state="stopped"), ()
    state = _with_rank(state, event.rank, state="failed")
    if state.failure is not None:
        if event.rank == state.failure.rank:  # it stalled, and has been ended now
            return _with_failure(state, dataclasses.replace(state.failure, log_tail=event.log_tail)), ()
        grace_over = state.t - state.failed_t >= state.policy.failed_grace_s
        first = failure.first_of(state.failure, failure.of_rank(rank, event), grace_over)
        blamed = (*state.failed_hosts[:-1], first.host)
        return dataclasses.replace(_with_failure(state, first), failed_hosts=blamed), ()
    return _fail(state, failure.of_rank(rank, event))


def _link_lost(state: RunState, event: LinkLost) -> Step:
    if event.host in state.lost:
        return state, ()
    return dataclasses.replace(state, cut=state.cut | {event.host}), (Relink(event.host),)


def _link_back(state: RunState, event: LinkBack) -> Step:
    heard = {**state.heard, event.host: event.t}
    return dataclasses.replace(state, cut=state.cut - {event.host}, heard=heard), ()


def _node_lost(state: RunState, event: NodeLost) -> Step:
    if event.host in state.lost:
        return state, ()
    heard = _without(state.heard, event.host)
    lost = {**state.lost, event.host: event.t}
    state = dataclasses.replace(state, lost=lost, cut=state.cut - {event.host}, heard=heard)
    ranks = tuple(
        dataclasses.replace(r, state="stopped") if r.host == event.host and not r.over else r
        for r in state.ranks
    )
    state = dataclasses.replace(state, ranks=ranks)
    actions: tuple[Action, ...] = () if state.interrupted else (Reopen(event.host),)
    # A spare has no part in the attempt, and an idle node has done its own.
    if state.state in ("starting", "running") and event.host in state.hosts and event.host not in state.idle:
        state, stop = _fail(state, failure.of_node(event, state.attempt, state.step))
        actions = stop + actions
    return state, actions


def _node_back(state: RunState, event: NodeBack) -> Step:
    """Nothing of the attempt is on it any more, whatever becomes of the attempt."""
    return dataclasses.replace(
        state, heard={**state.heard, event.host: event.t}, idle=state.idle | {event.host},
        lost=_without(state.lost, event.host), unreached=_without(state.unreached, event.host),
    ), ()  # fmt: skip


def _heard(state: RunState, event: Heard) -> Step:
    return dataclasses.replace(state, heard={**state.heard, event.host: event.t}), ()


def _node_idle(state: RunState, event: NodeIdle) -> Step:
    return dataclasses.replace(state, idle=state.idle | {event.host}), ()


def _interrupted(state: RunState, event: Interrupted) -> Step:
    grace_s = state.policy.grace_s if state.interrupts == 0 else 0.0
    state = dataclasses.replace(
        state, interrupted=state.interrupted or event.signal, interrupts=state.interrupts + 1, state="stopping",
        restart_at=None,
    )  # fmt: skip
    return state, (StopRanks(state.attempt, grace_s),)


def _fail(state: RunState, first: Failure) -> Step:
    further = state.step > state.best_step
    state = dataclasses.replace(
        _with_failure(state, first), state="stopping", failed_t=state.t, best_step=max(state.step, state.best_step),
        fruitless=0 if further else state.fruitless + 1, failed_hosts=(*state.failed_hosts, first.host),
    )  # fmt: skip
    return state, (StopRanks(state.attempt, state.policy.failed_grace_s),)


def _restarting(state: RunState, event: Restarting) -> Step:
    return dataclasses.replace(
        state, state="restarting", in_flight=False, restart_at=event.t + event.wait_s
    ), ()


def _reopen_failed(state: RunState, event: ReopenFailed) -> Step:
    if event.host not in state.lost:
        return state, ()
    return dataclasses.replace(state, unreached={**state.unreached, event.host: event.why}), ()


def _placed(state: RunState, event: Placed) -> Step:
    """Other ranks from now on, over until the attempt begins: what comes of the old ones does not touch them."""
    ranks = tuple(Rank(**rank, state="stopped") for rank in event.ranks)
    return dataclasses.replace(state, ranks=ranks, places=tuple(event.places), asked=None), ()


def _unplaceable(state: RunState, event: Unplaceable) -> Step:
    return dataclasses.replace(state, unplaceable=event.why), ()


def _ended(state: RunState, event: Ended) -> Step:
    return dataclasses.replace(state, state=event.state, exit_code=event.exit_code), ()


def _decide(state: RunState) -> Step:
    """What follows from the state alone, whichever event led to it."""
    notes = _watch_nodes(state)
    silent = progress.silent(state, state.policy.heartbeat_timeout_s)
    if silent != state.unreachable:
        state = dataclasses.replace(state, unreachable=silent)
    state, watching = _watch_progress(state)
    notes += watching
    idle, lost = state.idle, state.lost
    if state.in_flight and any(r.host not in idle and r.host not in lost for r in reversed(state.ranks)):
        return state, notes  # something of the attempt is still there
    if state.interrupted:
        code = contract.EXIT_TERMINATED if state.interrupted == "SIGTERM" else contract.EXIT_INTERRUPTED
        return _end(state, "stopped", code, notes)
    if state.state == "restarting":
        state, actions = _begin_if_due(state)
        return state, notes + actions
    elif state.failure is not None:
        return _after_failure(state, notes)
    elif state.in_flight and all(rank.state == "done" for rank in state.ranks):
        return _end(state, "finished", contract.EXIT_OK, notes)
    return state, notes


def _end(state: RunState, name: str, code: int, actions: tuple[Action, ...]) -> Step:
    return dataclasses.replace(state, state=name, exit_code=code), (*actions, Finish(name, code))


def _after_failure(state: RunState, notes: tuple[Action, ...]) -> Step:
    verdict = restart.decide(state)
    if verdict.wait_s is None:
        return _end(state, "failed", contract.EXIT_FAILED, (*notes, Note(f"no restart: {verdict.reason}")))
    event = Restarting(state.t, verdict.wait_s, verdict.reason)
    state, begun = _begin_if_due(_restarting(state, event)[0])
    return state, (*notes, Write(event), *begun)


def _begin_if_due(state: RunState) -> Step:
    """Begin the next attempt when its time has come and its places are held; have it planned anew for other hosts."""
    if state.restart_at is None or state.t < state.restart_at:
        return state, ()
    if state.unplaceable:
        return _end(state, "failed", contract.EXIT_FAILED, (Note(state.unplaceable),))
    found = restart.allotment(state)
    if found.waits_for or found.places == state.asked:
        return state, ()
    if found.places == state.places:
        return begin(state)
    if not found.nodes:
        return _end(state, "failed", contract.EXIT_FAILED, (Note(restart.too_few(state)),))
    notes = map(Note, restart.changes(state, found.places))
    return dataclasses.replace(state, asked=found.places), (*notes, Place(found.places))


def _watch_progress(state: RunState) -> Step:
    """Call it stalled when nothing moves; once every node has told what its ranks do, end it."""
    if (event := progress.judged(state)) is not None:
        return progress.stalled(state, event)[0], (Write(event), TakeStacks(state.attempt))
    if (found := progress.looked(state)) is not None:
        state, stopping = _held_up(state, found)
        return state, (Write(found), *stopping)
    return state, ()


def _watch_nodes(state: RunState) -> tuple[Action, ...]:
    policy = state.policy
    new = progress.silent(state, policy.heartbeat_timeout_s) - state.unreachable
    gone = progress.silent(state, policy.lease_s + policy.grace_s)
    why = f"nothing heard for {policy.lease_s + policy.grace_s:.0f} s; its ranks have ended themselves by now"
    return (
        *(
            Note(f"{h} is unreachable: nothing heard for {policy.heartbeat_timeout_s:.0f} s")
            for h in sorted(new)
        ),
        *(GiveUp(host, why) for host in sorted(gone)),
    )


def _with_rank(run: RunState, number: int, /, **changes: Any) -> RunState:
    ranks = list(run.ranks)
    ranks[number] = dataclasses.replace(ranks[number], **changes)
    return dataclasses.replace(run, ranks=tuple(ranks))


def _without(known: dict[str, T], host: str) -> dict[str, T]:
    return {other: value for other, value in known.items() if other != host}


def _with_failure(state: RunState, first: Failure) -> RunState:
    return dataclasses.replace(state, failure=first, first_failure=first)


def _noted(state: RunState, event: Noted) -> Step:
    return dataclasses.replace(state, notes=(*state.notes, event.text)[-20:]), ()


_HANDLERS: dict[type[Event], Any] = {
    PortPicked: _port_picked,
    AttemptBegan: _attempt_began,
    RankStarted: _rank_started,
    RankReported: _reported,
    Progressed: _progressed,
    Tick: progress.ticked,
    Stepped: progress.stepped,
    Wrote: progress.wrote,
    events.Stalled: progress.stalled,
    StacksTaken: progress.stacks_taken,
    HeldUp: _held_up,
    RankExited: _rank_exited,
    NodeLost: _node_lost,
    NodeBack: _node_back,
    LinkLost: _link_lost,
    LinkBack: _link_back,
    Heard: _heard,
    NodeIdle: _node_idle,
    Interrupted: _interrupted,
    Noted: _noted,
    Restarting: _restarting,
    ReopenFailed: _reopen_failed,
    Placed: _placed,
    Unplaceable: _unplaceable,
    Ended: _ended,
}
