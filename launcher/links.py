"""What events tell of nodes, their agents, and the links to them. Pure; a part of launcher.supervise."""

from __future__ import annotations

import dataclasses
from typing import TypeVar

from launcher import attempts, failure
from launcher.actions import Action, Relink, Reopen
from launcher.events import Heard, LinkBack, LinkLost, NodeBack, NodeIdle, NodeLost, ReopenFailed
from launcher.state import RunState, Step, Unsent

T = TypeVar("T")


def link_lost(state: RunState, event: LinkLost) -> Step:
    """The channel has ended; look for the agent."""
    if event.host in state.lost:
        return state, ()
    return dataclasses.replace(state, cut=state.cut | {event.host}), (Relink(event.host),)


def link_back(state: RunState, event: LinkBack) -> Step:
    """The agent was found."""
    heard = {**state.heard, event.host: event.t}
    return dataclasses.replace(state, cut=state.cut - {event.host}, heard=heard), ()


def lost(state: RunState, event: NodeLost) -> Step:
    """The agent is gone, and the ranks with it."""
    if event.host in state.lost:
        return state, ()
    heard = _without(state.heard, event.host)
    gone = {**state.lost, event.host: event.t}
    state = dataclasses.replace(state, lost=gone, cut=state.cut - {event.host}, heard=heard)
    ranks = tuple(
        dataclasses.replace(r, state="stopped") if r.host == event.host and not r.over else r
        for r in state.ranks
    )
    state = dataclasses.replace(state, ranks=ranks)
    actions: tuple[Action, ...] = () if state.interrupted else (Reopen(event.host),)
    # A spare has no part in the attempt, and an idle node has done its own.
    if state.state in ("starting", "running") and event.host in state.hosts and event.host not in state.idle:
        state, stop = attempts.fail(state, failure.of_node(event, state.attempt, state.step))
        actions = stop + actions
    return state, actions


def back(state: RunState, event: NodeBack) -> Step:
    """Nothing of the attempt is on it any more, whatever becomes of the attempt."""
    return dataclasses.replace(
        state, heard={**state.heard, event.host: event.t}, idle=state.idle | {event.host},
        lost=_without(state.lost, event.host), unreached=_without(state.unreached, event.host),
    ), ()  # fmt: skip


def heard(state: RunState, event: Heard) -> Step:
    """Something has come from the node."""
    return dataclasses.replace(state, heard={**state.heard, event.host: event.t}), ()


def idle(state: RunState, event: NodeIdle) -> Step:
    """Nothing of the attempt is left on the node, but logs that had to stay there."""
    unsent = state.unsent
    if event.unsent:
        unsent = {**unsent, event.host: Unsent(event.folder, sum(event.unsent.values()))}
    return dataclasses.replace(state, idle=state.idle | {event.host}, unsent=unsent), ()


def reopen_failed(state: RunState, event: ReopenFailed) -> Step:
    """A lost host was not reached at the first try."""
    if event.host not in state.lost:
        return state, ()
    return dataclasses.replace(state, unreached={**state.unreached, event.host: event.why}), ()


def _without(known: dict[str, T], host: str) -> dict[str, T]:
    return {other: value for other, value in known.items() if other != host}
