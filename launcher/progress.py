"""What events tell of a run that moves or stands still. Pure; a part of launcher.supervise."""

from __future__ import annotations

import dataclasses

from launcher import events, stall
from launcher.actions import Action
from launcher.state import RunState, Stalled

Step = tuple[RunState, tuple[Action, ...]]


def stepped(state: RunState, event: events.Stepped) -> Step:
    """Ranks have finished steps."""
    ranks = tuple(
        dataclasses.replace(r, newest_step=event.steps.get(r.rank, r.newest_step)) for r in state.ranks
    )
    return moved(dataclasses.replace(state, ranks=ranks)), ()


def moved(state: RunState) -> RunState:
    """Look where the slowest rank is now; a script may report steps on some of its ranks only."""
    there = [rank for rank in state.ranks if not rank.over]
    steps = [rank.newest_step for rank in there if rank.newest_step or not state.policy.script]
    phases = frozenset(rank.phase for rank in there if rank.phase)
    return dataclasses.replace(state, pace=stall.seen(state.pace, min(steps, default=0), phases))


def wrote(state: RunState, event: events.Wrote) -> Step:
    """A rank has written something."""
    return dataclasses.replace(state, pace=stall.wrote(state.pace)), ()


def stalled(state: RunState, event: events.Stalled) -> Step:
    """The run is called stalled."""
    return dataclasses.replace(state, state="stalled", stalled=Stalled(event.t, event.why)), ()


def stacks_taken(state: RunState, event: events.StacksTaken) -> Step:
    """A node has told what its ranks are doing."""
    if state.stalled is None:
        return state, ()
    looks = {**state.stalled.looks, **{int(rank): look for rank, look in event.looks.items()}}
    return dataclasses.replace(state, stalled=dataclasses.replace(state.stalled, looks=looks)), ()
