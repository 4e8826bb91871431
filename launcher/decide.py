"""What follows from the state alone, whichever event led to it. Pure; a part of launcher.supervise."""

from __future__ import annotations

import dataclasses

from distperf import contract
from launcher import attempts, progress, ranks, restart
from launcher.actions import Action, Finish, GiveUp, Note, Place, TakeStacks, Write
from launcher.events import Restarting
from launcher.state import RunState, Step

EXIT_CODES = {
    "SIGINT": contract.EXIT_INTERRUPTED,
    "SIGTERM": contract.EXIT_TERMINATED,
    "SIGUSR1": contract.EXIT_PREEMPTED,
}


def decide(state: RunState) -> Step:
    """Whether it stalls, whether the attempt is over, and what comes then."""
    notes = _watch_nodes(state)
    silent = progress.silent(state, state.policy.heartbeat_timeout_s)
    if silent != state.unreachable:
        state = dataclasses.replace(state, unreachable=silent)
    state, watching = _watch_progress(state)
    notes += watching
    deaf = state.cut | state.unreachable if state.interrupts > 1 else frozenset()
    if state.in_flight and any(_is_awaited(state, rank.host, deaf) for rank in reversed(state.ranks)):
        return state, notes  # something of the attempt is still there
    if state.interrupted:
        notes += _not_awaited(state, deaf)
        return _end(state, "stopped", EXIT_CODES[state.interrupted], notes)
    if state.state == "restarting":
        state, actions = _begin_if_due(state)
        return state, notes + actions
    elif state.failure is not None:
        return _after_failure(state, notes)
    elif state.in_flight and all(rank.state == "done" for rank in state.ranks):
        return _end(state, "finished", contract.EXIT_OK, notes)
    return state, notes


def _is_awaited(state: RunState, host: str, deaf: frozenset[str]) -> bool:
    return host not in state.idle and host not in state.lost and host not in deaf


def _not_awaited(state: RunState, deaf: frozenset[str]) -> tuple[Action, ...]:
    """A second Ctrl-C does not wait for nodes that cannot be told."""
    left = [host for host in state.hosts if host in deaf and _is_awaited(state, host, frozenset())]
    limit_s = state.policy.lease_s + state.policy.grace_s
    text = f"is out of reach and was not told: its ranks end themselves within {limit_s:.0f} s"
    return tuple(Note(f"{host} {text}") for host in left if state.in_flight)


def _end(state: RunState, name: str, code: int, actions: tuple[Action, ...]) -> Step:
    return dataclasses.replace(state, state=name, exit_code=code), (*actions, Finish(name, code))


def _after_failure(state: RunState, notes: tuple[Action, ...]) -> Step:
    verdict = restart.decide(state)
    if verdict.wait_s is None:
        return _end(state, "failed", contract.EXIT_FAILED, (*notes, Note(f"no restart: {verdict.reason}")))
    event = Restarting(state.t, verdict.wait_s, verdict.reason)
    state, begun = _begin_if_due(attempts.restarting(state, event)[0])
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
        return attempts.begin(state)
    if not found.nodes:
        return _end(state, "failed", contract.EXIT_FAILED, (Note(restart.too_few(state)),))
    notes = map(Note, restart.changes(state, found.places))
    return dataclasses.replace(state, asked=found.places), (*notes, Place(found.places))


def _watch_progress(state: RunState) -> Step:
    """Call it stalled when nothing moves; once every node has told what its ranks do, end it."""
    if (event := progress.judged(state)) is not None:
        return progress.stalled(state, event)[0], (Write(event), TakeStacks(state.attempt))
    if (found := progress.looked(state)) is not None:
        state, stopping = ranks.held_up(state, found)
        return state, (Write(found), *stopping)
    if (told := progress.lingering(state)) is not None:
        pace = dataclasses.replace(state.pace, told=True)
        return dataclasses.replace(state, pace=pace), (Note(told),)
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
