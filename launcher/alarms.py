"""What is odd about a run just now, one sentence each: what a person should look at. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence

from launcher import figures
from launcher.figures import Figures
from launcher.series import Line
from launcher.state import RunState
from launcher.words import plural

SPIKE = 8.0  # deviations above the median of the newest steps
LEAST_SPREAD = 0.01  # share of the median: a loss that lies still may wobble by this
LEAST_STEPS = 8  # before there is a median to speak of
SLOW = 2.0  # times the median of the run
DATA_WAIT = 0.1  # share of a step
FULL = 0.95  # share of a node's memory
NO_FIGURES = Figures()


def alarms(
    state: RunState, recent: Sequence[Line], points: Sequence[Line], found_of: Figures = NO_FIGURES
) -> list[str]:
    """recent: the newest steps; points: of the whole run, thinned; found_of: ranks and nodes."""
    if state.over:
        return []
    found = [_not_finite(recent[-1]), _spike(recent), _slow(recent, points)] if recent else []
    if state.unreachable:
        found.append(
            f"{plural(len(state.unreachable), 'host')} unreachable: {', '.join(sorted(state.unreachable)[:3])}"
        )
    found += [_data(state, found_of), *_memory(found_of), *figures.ailing(found_of)]
    return [sentence for sentence in found if sentence]


def _data(state: RunState, found: Figures) -> str:
    """Ranks that wait for data."""
    share, rank = figures.data_wait(found) or (0.0, 0)
    if share < DATA_WAIT or rank >= len(state.ranks):
        return ""
    return f"waiting for data takes {share:.0%} of a step (rank {rank} on {state.ranks[rank].host})"


def _memory(found: Figures) -> Iterator[str]:
    """Nodes that have hardly any memory left."""
    total = found.of_nodes("memory_total_bytes")
    for host, used in found.of_nodes("memory_bytes").items():
        if total.get(host) and used / total[host] > FULL:
            yield f"the memory of {host} is {used / total[host]:.0%} full"


def _not_finite(last: Line) -> str:
    """Null is how training tells of what is not finite. A norm that overflows in fp16 only lowers the loss scale."""
    watched = ("loss",) if last.get("loss_scale") is not None else ("loss", "grad_norm")
    names = [
        name
        for name in watched
        if name in last
        and (last[name] is None or (isinstance(last[name], float) and not math.isfinite(last[name])))
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
