"""What events tell of a run that moves or stands still. Pure; a part of launcher.supervise."""

from __future__ import annotations

import dataclasses

from launcher import events, failure, stacks, stall, words
from launcher.state import RunState, Stalled, Step

EARSHOT_S = 3.0  # a node that was not heard for this long cannot be said to stand still
STACKS_S = 5.0  # how long a stalled run waits for its agents to say what the ranks are doing


def passed(state: RunState, t: float) -> RunState:
    """It is t now. Ticks are 0.25 s apart: what is far longer was a pause of the controller's, not a host's silence."""
    pause_s = t - state.t - stall.MAX_LOOK_S
    heard = state.heard if pause_s <= 0 else {host: at + pause_s for host, at in state.heard.items()}
    return dataclasses.replace(state, t=t, heard=heard)


def stepped(state: RunState, event: events.Stepped) -> Step:
    """Ranks have finished steps."""
    pace = dataclasses.replace(state.pace, steps={**state.pace.steps, **event.steps})
    return dataclasses.replace(state, pace=pace), ()


def ticked(state: RunState, event: events.Tick) -> Step:
    """Look where the slowest rank is now; a script may report steps on some of its ranks only."""
    deaf = silent(state, EARSHOT_S)
    watched = not (deaf and deaf & set(state.hosts))  # else the time that passed says nothing
    pace = stall.passed(state.pace, event.t, watched=watched)
    there = [rank for rank in state.ranks if not rank.over]
    newest = [pace.steps.get(rank.rank, 0) for rank in there]
    steps = [step for step in newest if step or not state.policy.script]
    phases = frozenset(rank.phase for rank in there if rank.phase)
    return dataclasses.replace(state, pace=stall.seen(pace, min(steps, default=0), phases)), ()


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


def judged(state: RunState) -> events.Stalled | None:
    """Whether a run that runs is to be called stalled now."""
    if not state.in_flight or state.state != "running":
        return None
    why = stall.judge(state.pace, state.policy.stall_timeout_s, state.policy.script)
    return None if why is None else events.Stalled(state.t, state.attempt, why)


def lingering(state: RunState) -> str | None:
    """What is said, once, of ranks of a script that go on in silence after others have ended.

    Rank 0 may be writing a model, which is no stall; a rank that hangs at its end would never be noticed otherwise.
    """
    if not (
        state.in_flight and state.policy.script and state.state == "running" and stall.lingers(state.pace)
    ):
        return None
    ended = [rank.rank for rank in state.ranks if rank.state == "done"]
    left = [rank.rank for rank in state.ranks if not rank.over]
    if not (ended and left):
        return None
    still = "still runs" if len(left) == 1 else "still run"
    since = f"{stall.LINGER_S:.0f} s and more after {words.ranks(ended)} ended"
    return f"{words.ranks(left)} {still}, without a word, {since} (distperf status: 3, then x, shows their stacks)"


def looked(state: RunState) -> events.HeldUp | None:
    """Who holds a stalled run up, once all nodes have told or have had their time."""
    if state.state != "stalled" or state.stalled is None:
        return None
    there = {rank.rank for rank in state.ranks if not rank.over}
    late = state.t - state.stalled.t >= STACKS_S
    if not there or not (late or there <= set(state.stalled.looks)):
        return None
    rank = stacks.held_up_by(state.ranks, failure.places_of(state), state.policy.script)
    return events.HeldUp(state.t, state.attempt, rank.rank)


def silent(state: RunState, limit_s: float) -> frozenset[str]:
    """Hosts that were not heard for longer than this."""
    if state.t - min(state.heard.values(), default=state.t) <= limit_s:
        return frozenset()  # nearly always: with a thousand nodes this is asked a thousand times a second
    return frozenset(h for h, t in state.heard.items() if h not in state.lost and state.t - t > limit_s)
