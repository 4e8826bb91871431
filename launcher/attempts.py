"""How attempts begin, fail and are told to end, and what follows between them. Pure; a part of launcher.supervise."""

from __future__ import annotations

import dataclasses

from launcher.actions import PickPort, StartRanks, StopRanks, Write
from launcher.events import (
    AttemptBegan,
    Ended,
    Interrupted,
    Noted,
    Placed,
    PortPicked,
    Restarting,
    Unplaceable,
)
from launcher.stall import Pace
from launcher.state import Failure, Rank, RunState, Step, with_failure


def begin(state: RunState) -> Step:
    """Enter the next attempt: the first one and a restart alike."""
    event = AttemptBegan(state.t, state.attempt + 1)
    return began(state, event)[0], (Write(event), PickPort())


def began(state: RunState, event: AttemptBegan) -> Step:
    """Everything of the attempt before is forgotten but who holds which place."""
    ranks = tuple(Rank(r.rank, r.local_rank, r.host, r.node_rank, r.coordinates) for r in state.ranks)
    here = dict.fromkeys((m.host for m in state.pool if m.host not in state.lost), event.t)
    heard = {**here, **state.heard}  # one that says nothing from now on is silent
    rank_hosts = {**state.rank_hosts, event.attempt: tuple(rank.host for rank in ranks)}
    return dataclasses.replace(
        state, ranks=ranks, attempt=event.attempt, state="starting", began_t=event.t, rank_hosts=rank_hosts,
        heard=heard, idle=frozenset(), failure=None, restart_at=None, asked=None,
        pace=Pace(event.t), stalled=None,
    ), ()  # fmt: skip


def port_picked(state: RunState, event: PortPicked) -> Step:
    """The rendezvous is known: start the ranks."""
    if state.state != "starting":
        return state, ()
    state = dataclasses.replace(state, in_flight=True)
    return state, (StartRanks(event.attempt, event.address, event.port),)


def interrupted(state: RunState, event: Interrupted) -> Step:
    """The first time in order; then at once. In a job one signal comes several times: to batch shell and steps."""
    if state.interrupts and state.policy.in_job and event.signal != "SIGINT":
        return state, ()
    hurry = state.interrupts > 0
    grace_s = 0.0 if hurry else state.policy.grace_s
    state = dataclasses.replace(
        state, interrupted=state.interrupted or event.signal, interrupts=state.interrupts + 1, state="stopping",
        restart_at=None,
    )  # fmt: skip
    return state, (StopRanks(state.attempt, grace_s, hurry),)


def fail(state: RunState, first: Failure) -> Step:
    """The attempt's first failure: end the other ranks."""
    further = state.step > state.best_step
    state = dataclasses.replace(
        with_failure(state, first), state="stopping", failed_t=state.t, best_step=max(state.step, state.best_step),
        fruitless=0 if further else state.fruitless + 1, failed_hosts=(*state.failed_hosts, first.host),
    )  # fmt: skip
    return state, (StopRanks(state.attempt, state.policy.failed_grace_s),)


def restarting(state: RunState, event: Restarting) -> Step:
    """Another attempt follows."""
    return dataclasses.replace(
        state, state="restarting", in_flight=False, restart_at=event.t + event.wait_s
    ), ()


def placed(state: RunState, event: Placed) -> Step:
    """Other ranks from now on, over until the attempt begins: what comes of the old ones does not touch them."""
    ranks = tuple(Rank(**rank, state="stopped") for rank in event.ranks)
    return dataclasses.replace(state, ranks=ranks, places=tuple(event.places), asked=None), ()


def unplaceable(state: RunState, event: Unplaceable) -> Step:
    """There is no plan for the hosts that are left."""
    return dataclasses.replace(state, unplaceable=event.why), ()


def ended(state: RunState, event: Ended) -> Step:
    """The run is over."""
    return dataclasses.replace(state, state=event.state, exit_code=event.exit_code), ()


def noted(state: RunState, event: Noted) -> Step:
    """A line of the run's story."""
    return dataclasses.replace(state, notes=(*state.notes, event.text)[-20:]), ()
