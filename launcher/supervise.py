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

What an event says is taken in first (launcher.attempts, ranks, links, progress); what follows from the state that this
gives is decided then, in one place (launcher.decide).
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from launcher import attempts, events, links, progress, ranks
from launcher.allot import Member
from launcher.decide import decide
from launcher.events import Event, RunCreated
from launcher.state import Policy, Rank, RunState, Step


def created(event: RunCreated) -> RunState:
    """The state that a run's first event gives."""
    planned = tuple(Rank(**rank) for rank in event.ranks)
    slots = Counter(rank.host for rank in planned)  # in node order
    pool = tuple(Member(**member) for member in event.pool)
    return RunState(
        event.run_id, event.name, Policy(**event.policy), planned, event.steps, event.controller, t=event.t,
        pool=pool or tuple(Member(*item) for item in slots.items()), places=tuple(slots),
        attempt=event.attempts_before, attempts_before=event.attempts_before,
    )  # fmt: skip


def advance(state: RunState, event: Event) -> Step:
    """The next state and what is to be done now."""
    if state.over:
        return state, ()
    state, actions = observe(state, event)
    state, later = decide(state)
    return state, actions + later


def observe(state: RunState, event: Event) -> Step:
    """Take in one event. Replaying a journal is this alone: decisions are in it as events of their own."""
    if event.t > state.t:
        state = progress.passed(state, event.t)
    of_another = getattr(event, "attempt", state.attempt) != state.attempt
    if of_another and not isinstance(event, events.AttemptBegan):
        return state, ()  # a late word of an attempt that is over
    if getattr(event, "rank", -1) >= len(state.ranks):
        return state, ()  # or of a rank that there was before nodes became fewer
    handler = _HANDLERS.get(type(event))
    return handler(state, event) if handler else (state, ())


_HANDLERS: dict[type[Event], Any] = {
    events.AttemptBegan: attempts.began,
    events.PortPicked: attempts.port_picked,
    events.Interrupted: attempts.interrupted,
    events.Restarting: attempts.restarting,
    events.Placed: attempts.placed,
    events.Unplaceable: attempts.unplaceable,
    events.Ended: attempts.ended,
    events.Noted: attempts.noted,
    events.RankStarted: ranks.started,
    events.RankReported: ranks.reported,
    events.Progressed: ranks.progressed,
    events.HeldUp: ranks.held_up,
    events.RankExited: ranks.exited,
    events.Heard: links.heard,
    events.LinkLost: links.link_lost,
    events.LinkBack: links.link_back,
    events.NodeLost: links.lost,
    events.NodeBack: links.back,
    events.NodeIdle: links.idle,
    events.ReopenFailed: links.reopen_failed,
    events.Tick: progress.ticked,
    events.Stepped: progress.stepped,
    events.Wrote: progress.wrote,
    events.Stalled: progress.stalled,
    events.StacksTaken: progress.stacks_taken,
}
