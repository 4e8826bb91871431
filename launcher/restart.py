"""Whether a failed attempt is followed by another, and when. Pure."""

from __future__ import annotations

from dataclasses import dataclass

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
    used = state.attempt - 1
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
