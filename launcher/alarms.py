"""What is odd about a run just now, one sentence each: what a person should look at. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from launcher.series import Line
from launcher.state import RunState
from launcher.words import plural

SPIKE = 8.0  # deviations above the median of the newest steps
LEAST_SPREAD = 0.01  # share of the median: a loss that lies still may wobble by this
LEAST_STEPS = 8  # before there is a median to speak of
SLOW = 2.0  # times the median of the run


def alarms(state: RunState, recent: Sequence[Line], points: Sequence[Line]) -> list[str]:
    """recent: the newest steps; points: of the whole run, thinned."""
    if state.over:
        return []
    found = [_not_finite(recent[-1]), _spike(recent), _slow(recent, points)] if recent else []
    if state.unreachable:
        found.append(
            f"{plural(len(state.unreachable), 'host')} unreachable: {', '.join(sorted(state.unreachable)[:3])}"
        )
    return [sentence for sentence in found if sentence]


def _not_finite(last: Line) -> str:
    names = [
        name
        for name in ("loss", "grad_norm")
        if isinstance(last.get(name), float) and not math.isfinite(last[name])
    ]
    return (
        f"{' and '.join(names)} {'are' if len(names) > 1 else 'is'} not finite at step {last['step']:,}"
        if names
        else ""
    )


def _spike(recent: Sequence[Line]) -> str:
    """The newest loss against the ones before it. Source: modified z-score, as for stragglers (launcher.tempo)."""
    losses = [
        line["loss"] for line in recent if isinstance(line.get("loss"), float) and math.isfinite(line["loss"])
    ]
    if len(losses) < LEAST_STEPS:
        return ""
    *before, last = losses
    middle = statistics.median(before)
    spread = max(
        1.4826 * statistics.median(abs(loss - middle) for loss in before), LEAST_SPREAD * abs(middle)
    )
    return f"loss jumped to {last:.4g}, median before {middle:.4g}" if last - middle > SPIKE * spread else ""


def _slow(recent: Sequence[Line], points: Sequence[Line]) -> str:
    """Steps of late against those of the whole run."""
    now, all_of_it = (
        [line["step_s"] for line in lines if isinstance(line.get("step_s"), float)]
        for lines in (recent, points)
    )
    if len(now) < LEAST_STEPS or len(all_of_it) < 4 * LEAST_STEPS:
        return ""
    late, usual = statistics.median(now), statistics.median(all_of_it)
    return f"steps take {late:.3g} s of late, {usual:.3g} s before" if late > SLOW * usual else ""
