"""Whether a failed attempt is followed by another, when, and on which hosts. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from launcher import allot, words
from launcher.state import RunState

MAX_FRUITLESS = 3  # attempts in a row without a step more than before: a fault that another try does not mend
MAX_WAIT_S = 30.0


@dataclass(frozen=True)
class Verdict:
    """wait_s None: no further attempt, for the reason given."""

    wait_s: float | None
    reason: str


def decide(state: RunState) -> Verdict:
    """Judge the attempt that has just failed. Budget and backoff count for the whole run."""
    failure, policy = state.failure, state.policy
    assert failure is not None
    used = state.attempt - state.attempts_before - 1
    if not failure.retry:
        return Verdict(None, "another attempt would fail the same way")
    if used >= policy.max_restarts:
        return Verdict(None, f"{used} of {policy.max_restarts} restarts are used")
    if state.fruitless >= MAX_FRUITLESS:
        return Verdict(
            None, f"{state.fruitless} attempts in a row got no further than step {state.best_step}"
        )
    # The first time may be chance, and a script that reports no steps never moves as far as is known here.
    wait_s = 0.0 if state.fruitless <= 1 else min(MAX_WAIT_S, 2.0 ** (state.fruitless - 2))
    return Verdict(wait_s, f"restart {used + 1} of {policy.max_restarts}")


def allotment(state: RunState) -> allot.Allotment:
    """Who holds the places of the next attempt, as far as is known now."""
    least = state.policy.min_nodes or len(state.places)
    aside = allot.set_aside(state.failed_hosts)
    return allot.allot(state.pool, state.places, _absences(state), aside, least)


def _absences(state: RunState) -> dict[str, allot.Absence]:
    """How long it makes sense to wait for each lost host: a reboot takes a while, and lease + grace is what it gets."""
    patience_s = state.policy.lease_s + state.policy.grace_s

    def absence(host: str, since: float) -> allot.Absence:
        if host not in state.unreached:
            return "trying"
        return "away" if state.t - since <= patience_s else "gone"

    return {host: absence(host, since) for host, since in state.lost.items()}


def changes(state: RunState, places: tuple[str, ...]) -> list[str]:
    """What the next attempt's holders change, in words."""
    aside = allot.set_aside(state.failed_hosts) - set(places) - state.lost.keys()
    lines = [
        f"{host} is set aside: the first failure was there too often"
        for host in state.places
        if host in aside
    ]
    for before, after in zip(state.places, places, strict=True):
        if before and after and before != after:
            lines.append(f"{after} takes the place of {before}")
        elif before and not after:
            lines.append(f"going on without {before}")
        elif after and not before:
            lines.append(f"{after} takes an empty place")
    return lines


def too_few(state: RunState) -> str:
    """Why there are no hosts for another attempt."""
    gone = [f"{host} could not be reached again: {state.unreached.get(host, 'no answer')}"
            for host in state.places if host in state.lost]  # fmt: skip
    least, spares = state.policy.min_nodes, len(state.pool) - len(state.places)
    wanted = f"launch.min_nodes is {least}" if least else "no node may be missing (launch.min_nodes)"
    fitting = f"none of {words.plural(spares, 'spare')} fits" if spares else "there is no spare"
    return "; ".join((*gone, f"{wanted}, and {fitting}"))
