"""Which share of a run's time made progress, and where the rest went. Pure.

Seconds are told by different clocks of the run: steps by their own time (metrics), start-ups and pauses by the journal.
What no clock tells is the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from launcher.chronicle import Try


@dataclass(frozen=True)
class StepTimes:
    """Sums over steps, where metrics hold their time: of steps that count, and of those that were done again."""

    kept_s: float | None
    redone_s: float | None


@dataclass(frozen=True)
class Goodput:
    """Where the time of a run went, in seconds; they add up to total_s."""

    total_s: float
    steps_s: float  # steps that count
    redone_s: float  # steps that a restart did again
    start_s: float  # attempts before their first step
    checkpoint_s: float
    down_s: float  # from a failure to the next attempt
    rest_s: float  # evaluation, waiting, stalls before they were called that

    @property
    def share(self) -> float:
        """Of the time that made progress."""
        return self.steps_s / self.total_s if self.total_s > 0 else 0.0

    @property
    def parts(self) -> tuple[tuple[str, float], ...]:
        """What each part is called, in the order in which it is told."""
        return (
            ("steps that count", self.steps_s),
            ("steps done again", self.redone_s),
            ("start-up", self.start_s),
            ("checkpoints", self.checkpoint_s),
            ("from failure to restart", self.down_s),
            ("everything else", self.rest_s),
        )


def goodput(tries: Sequence[Try], times: StepTimes, total_s: float) -> Goodput:
    """Account for the time of a run that has lasted total_s."""
    ends = [_end(one, total_s) for one in tries]
    start_s = sum((one.stepped_t if one.stepped_t is not None else end) - one.began_t
                  for one, end in zip(tries, ends, strict=True))  # fmt: skip
    down_s = sum(after.began_t - end for (_, after), end in zip(pairwise(tries), ends, strict=False))
    checkpoint_s = sum(one.checkpoint_s for one in tries)
    if times.kept_s is None:
        steps_s, redone_s = _from_progress(tries, ends)
    else:
        steps_s, redone_s = times.kept_s, times.redone_s or 0.0
    others_s = steps_s + redone_s + checkpoint_s + down_s
    start_s = min(start_s, max(0.0, total_s - others_s))  # a script's first steps are heard of late
    rest_s = max(0.0, total_s - others_s - start_s)
    return Goodput(max(total_s, others_s), steps_s, redone_s, start_s, checkpoint_s, down_s, rest_s)


def _end(one: Try, total_s: float) -> float:
    """When the attempt stopped to make progress, as far as is known."""
    found = one.failed_t if one.failed_t is not None else one.ended_t
    return total_s if found is None else found


def _from_progress(tries: Sequence[Try], ends: Sequence[float]) -> tuple[float, float]:
    """Seconds of steps that count and of those done again, where steps do not tell their time: each took its share."""
    steps_s = redone_s = 0.0
    for at, (one, end) in enumerate(zip(tries, ends, strict=True)):
        if one.stepped_t is None or one.first_step is None:
            continue
        running_s = max(0.0, end - one.stepped_t - one.checkpoint_s)
        later = [other.first_step for other in tries[at + 1 :] if other.first_step is not None]
        made = one.last_step - one.first_step + 1
        again = max(0, one.last_step - min(later, default=one.last_step + 1) + 1)
        share = min(1.0, again / made)
        redone_s += running_s * share
        steps_s += running_s * (1 - share)
    return steps_s, redone_s
