"""Whether a run stands still, and which rank holds it up. Pure.

Time is counted in seconds of watching: a second in which the controller slept, or in which a node could not be heard,
is nobody's stall. What moves is the run: the step that its slowest rank has finished, and the phases its ranks are in.
Steps arrive with heartbeats, once a second.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field

START_UP_S = 600.0  # until steps are known: loading, compiling, meeting, the first step
LEAST_STEP_S = 30.0
LEAST_PHASE_S = 300.0
PATIENCE = 10.0  # times the longest that was seen
GAPS = 50  # steps that `auto` looks back on
SLACK_S = 2.0  # a step may wait for the next heartbeat, and that for the next tick
LINGER_S = 60.0  # after a rank of a script has ended, or any has written something
MAX_LOOK_S = 1.0  # ticks are 0.25 s apart; whatever is longer was a pause of the controller's
PAUSES = {"checkpoint": "a checkpoint", "eval": "an evaluation"}


@dataclass(frozen=True)
class Pace:
    """How an attempt moves."""

    t: float = 0.0  # of the last look, on the controller's clock
    now_s: float = 0.0
    moved_s: float = 0.0  # when it last moved
    wrote_s: float = 0.0  # when any rank last wrote something, began or ended
    told: bool = False  # that some ranks have not ended with the others
    steps: Mapping[int, int] = field(default_factory=dict)  # newest by rank, sooner than the journal has it
    step: int = 0  # that the slowest rank has finished, of those that report
    phases: frozenset[str] = frozenset()  # that ranks are in
    first_s: float = 0.0  # when the slowest rank had finished a step
    gaps: tuple[float, ...] = ()  # between steps, newest last
    entered_s: Mapping[str, float] = field(default_factory=dict)  # phase -> since when ranks are in it
    longest_s: Mapping[str, float] = field(default_factory=dict)  # phase -> longest stay so far


@dataclass(frozen=True)
class Limit:
    """How long nothing may move now."""

    seconds: float
    reason: str
    output: bool = False  # counts from the last output, as there are no steps


def passed(pace: Pace, t: float, *, watched: bool = True) -> Pace:
    """It is t now; the time since the last look was watched, or was not."""
    seconds = min(t - pace.t, MAX_LOOK_S) if watched else 0.0
    return dataclasses.replace(pace, t=t, now_s=pace.now_s + seconds)


def wrote(pace: Pace) -> Pace:
    """A rank wrote something, was started, or has ended."""
    return dataclasses.replace(pace, wrote_s=pace.now_s)


def seen(pace: Pace, step: int, phases: frozenset[str]) -> Pace:
    """Where the slowest rank and the phases are now; a move where that is not where they were."""
    if (step, phases) == (pace.step, pace.phases):
        return pace
    gaps, first_s = pace.gaps, pace.first_s
    if step and not pace.step:
        first_s = pace.now_s
    if step > pace.step > 0:
        gaps = (*gaps, pace.now_s - pace.moved_s)[-GAPS:]
    stays = {phase: pace.now_s - pace.entered_s[phase] for phase in pace.phases - phases}
    longest = {**pace.longest_s, **{p: max(s, pace.longest_s.get(p, 0.0)) for p, s in stays.items()}}
    return dataclasses.replace(
        pace, step=step, phases=phases, first_s=first_s, gaps=gaps, moved_s=pace.now_s, longest_s=longest,
        entered_s={phase: pace.entered_s.get(phase, pace.now_s) for phase in phases},
    )  # fmt: skip


def limit(pace: Pace, timeout_s: float | None, script: bool) -> Limit | None:
    """The limit in force; None while nothing is watched. timeout_s: the recipe's, None for auto.

    The longest allowance of any rank counts for all, since the others wait for it. While data is prepared there is
    none: tokenising a large corpus takes hours.
    """
    if script and not pace.step:
        return None if timeout_s is None else Limit(timeout_s, "launch.stall_timeout_s", output=True)
    if "data" in pace.phases:
        return None
    limits = [_step_limit(pace, timeout_s)]
    limits += [_pause_limit(pace, phase, timeout_s) for phase in sorted(pace.phases) if phase in PAUSES]
    return max(limits, key=lambda limit: limit.seconds)


def _step_limit(pace: Pace, timeout_s: float | None) -> Limit:
    if not pace.step or (timeout_s is None and not pace.gaps):
        least = max(START_UP_S, timeout_s or 0.0, PATIENCE * pace.first_s)
        return Limit(least, "what the start may take, until two steps are known")
    if timeout_s is not None:
        return Limit(timeout_s, "launch.stall_timeout_s")
    longest = max(pace.gaps)
    if PATIENCE * longest <= LEAST_STEP_S:
        return Limit(LEAST_STEP_S, "the least that a step may take")
    return Limit(PATIENCE * longest, f"{PATIENCE:.0f} times the longest step, {longest:.1f} s")


def _pause_limit(pace: Pace, phase: str, timeout_s: float | None) -> Limit:
    longest = PATIENCE * pace.longest_s.get(phase, 0.0)
    return Limit(max(LEAST_PHASE_S, longest, timeout_s or 0.0), f"what {PAUSES[phase]} may take")


def judge(pace: Pace, timeout_s: float | None, script: bool) -> str | None:
    """Why the run is called stalled, or None."""
    found = limit(pace, timeout_s, script)
    if found is None:
        return None
    still_s = pace.now_s - (pace.wrote_s if found.output else pace.moved_s)
    if still_s <= found.seconds + SLACK_S:
        return None
    what = "no output" if found.output else "no progress"
    return f"{what} for {still_s:.0f} s; the limit is {found.seconds:.0f} s: {found.reason}"


def lingers(pace: Pace) -> bool:
    """Whether ranks that have not ended with the others have been silent for so long that a person should know."""
    return not pace.told and pace.now_s - pace.wrote_s > LINGER_S


def watched(timeout_s: float | None) -> str:
    """What is said of a script's watch at its start."""
    if timeout_s is None:
        return "watched for stalls from its first distperf.report on"
    return f"stalled after {timeout_s:g} s without a step (without output, while it reports none)"
