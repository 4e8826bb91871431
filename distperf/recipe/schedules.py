"""Pipeline schedules: which stages a rank holds, and in which order it works on them. Pure.

The orders are those of torch.distributed.pipelining, which carries them out; a test holds the two together.

Legend: P ranks of the pipeline (parallel.pp), M micro-batches of a step (accumulation), R micro-batches a round.

    schedule           stages a rank   backward   Source
    gpipe              1               whole      arXiv:1811.06965
    1f1b               1               whole      arXiv:1806.03377 (PipeDream, with a flush)
    interleaved_1f1b   2, in a loop    whole      arXiv:2104.04473
    zero_bubble        2, in a loop    split      arXiv:2401.10241 (ZB1P, interleaved)
    zbv                2, in a V       split      arXiv:2401.10241, section 6
    dualpipev          2, in a V       mixed      arXiv:2412.19437, cut in half as in DeepSeek's code

In a loop, stages go round the ranks (0 1 2 3 | 0 1 2 3); in a V they come back (0 1 2 3 | 3 2 1 0), so that the
first rank has the first and the last stage.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

FORWARD, BACKWARD, INPUTS, WEIGHTS = "F", "B", "I", "W"


@dataclass(frozen=True)
class Action:
    """One pass of one stage over one micro-batch.

    `kind`: F forward; B backward; or in two parts, I gradients of the inputs and W, later, those of the weights.
    """

    kind: str
    stage: int
    micro: int


@dataclass(frozen=True)
class Schedule:
    """What is true of a schedule whatever the sizes."""

    stages_per_rank: int
    v_shaped: bool = False
    splits_backward: bool = False


SCHEDULES = {
    "gpipe": Schedule(1),
    "1f1b": Schedule(1),
    "interleaved_1f1b": Schedule(2),
    "zero_bubble": Schedule(2, splits_backward=True),
    "zbv": Schedule(2, v_shaped=True, splits_backward=True),
    "dualpipev": Schedule(2, v_shaped=True, splits_backward=True),
}


def stage_count(schedule: str, pp: int) -> int:
    """Stages of the whole pipeline."""
    return pp * SCHEDULES[schedule].stages_per_rank


def stages_of(schedule: str, pp: int, rank: int) -> tuple[int, ...]:
    """The stages that a rank of the pipeline holds, in model order."""
    if SCHEDULES[schedule].v_shaped:
        return (rank, 2 * pp - 1 - rank)
    return tuple(range(rank, stage_count(schedule, pp), pp))


def rank_of(schedule: str, pp: int, stage: int) -> int:
    """The rank of the pipeline that holds a stage."""
    return 2 * pp - 1 - stage if SCHEDULES[schedule].v_shaped and stage >= pp else stage % pp


def reshards(schedule: str) -> bool:
    """Whether ZeRO-3 may free gathered weights between a forward pass and its backward pass.

    Not where the backward pass is split: torch 2.13 then loses gradients of weights without a word (the first part
    does not gather them again, as the whole does). Such stages keep their weights gathered for a step.
    """
    return not SCHEDULES[schedule].splits_backward


def allows(schedule: str, pp: int, micro_batches: int) -> bool:
    """Whether the schedule works with so many micro-batches a step."""
    if schedule in ("1f1b", "dualpipev"):
        return micro_batches >= stage_count(schedule, pp)
    if schedule in ("interleaved_1f1b", "zero_bubble"):
        return micro_batches % _rounds(pp, micro_batches) == 0
    return micro_batches >= 1


def demand(schedule: str, pp: int) -> str:
    """What `allows` asks, in words."""
    if schedule in ("1f1b", "dualpipev"):
        return f"at least {stage_count(schedule, pp)}, one for each stage"
    if schedule in ("interleaved_1f1b", "zero_bubble"):
        return f"at most {2 * pp - 1}, or whole rounds: a multiple of {pp} always fits"
    return "any number"


def _rounds(pp: int, micro_batches: int) -> int:
    return max(1, micro_batches // pp)


def order(schedule: str, pp: int, micro_batches: int, rank: int) -> tuple[Action, ...]:
    """What a rank does in a step, first to last."""
    assert allows(schedule, pp, micro_batches), (schedule, pp, micro_batches)
    if SCHEDULES[schedule].v_shaped:
        steps = _zbv(pp, micro_batches, rank) if schedule == "zbv" else _dualpipev(pp, micro_batches, rank)
        return tuple(a for a in _numbered(steps, stages_of(schedule, pp, rank)) if a.micro < micro_batches)
    return tuple(_looped(schedule, pp, micro_batches, rank))


def _looped(schedule: str, pp: int, micro_batches: int, rank: int) -> Iterator[Action]:
    """Some forward passes first, then a forward and a backward pass in turn, then the backward passes left."""
    stages = stages_of(schedule, pp, rank)
    count, per_round = len(stages), micro_batches // _rounds(pp, micro_batches)
    total = count * micro_batches
    ahead = {"gpipe": total, "interleaved_1f1b": 2 * (pp - 1 - rank)}.get(schedule, pp - 1 - rank)
    warmup = min(total, ahead + (count - 1) * per_round)
    # In rounds: each stage of the rank in turn takes the round's micro-batches.
    micros = [k // (per_round * count) * per_round + k % per_round for k in range(total)]
    turns = [k // per_round % count for k in range(total)]
    splits = SCHEDULES[schedule].splits_backward
    lag = min(rank, total)  # passes for weights that wait, to fill the bubble at the end
    for k in range(warmup):
        yield Action(FORWARD, stages[turns[k]], micros[k])
    for k in range(total):
        if warmup + k < total:
            yield Action(FORWARD, stages[turns[warmup + k]], micros[warmup + k])
        yield Action(INPUTS if splits else BACKWARD, stages[-1 - turns[k]], micros[k])
        if splits and k >= lag:
            yield Action(WEIGHTS, stages[-1 - turns[k - lag]], micros[k - lag])
    if splits:
        for k in range(total - lag, total):
            yield Action(WEIGHTS, stages[-1 - turns[k]], micros[k])


def _zbv(pp: int, micro_batches: int, rank: int) -> list[str]:
    """Kinds of passes, each with which of the rank's two stages (0 or 1) it is for.

    Made for at least 2 P - 1 micro-batches; of fewer, those beyond are left out.
    """
    count, hops = max(2 * pp - 1, micro_batches), pp - rank
    steps = ["F0"] * (2 * hops - 1) + ["F1", "F0"] * rank + ["F1", "I1", "W1"] * hops
    steady = count - pp
    new = count - (2 * pp - 1 - rank)  # micro-batches that have not begun
    for k in range(steady):
        steps += ["F0"] * (k < new) + ["I0", "W0", "F1", "I1", "W1"]
    return steps + ["I0", "I1"] * rank + ["I0", "W0"] * hops + ["W1"] * rank + ["W0"] * rank


def _dualpipev(pp: int, micro_batches: int, rank: int) -> list[str]:
    """As `_zbv`; W alone is for the pass for inputs whose weights have waited longest, if one has."""
    hops = pp - 1 - rank
    steps = ["F0"] * (2 * hops) + ["F0", "F1"] * (rank + 1) + ["I1", "W", "F1"] * hops
    steps += ["F0", "B1", "F1", "B0"] * (micro_batches - 2 * pp + rank + 1) + ["B1", "F1", "B0"] * hops
    ending = [f"{BACKWARD if k <= rank else INPUTS}{1 - k % 2}" for k in range(2 * (rank + 1))]
    return steps + ending + ["W", "I0"] * hops + ["W"] * (rank + 1)


def _numbered(steps: Iterable[str], stages: tuple[int, ...]) -> Iterator[Action]:
    """Each stage takes micro-batches in order; its weights' passes follow in the order of those for inputs."""
    counts: Counter[str] = Counter()
    waiting: list[Action] = []
    for step in steps:
        kind, which = step[:1], step[1:]
        if kind == WEIGHTS:
            fitting = [a for a in waiting if not which or a.stage == stages[int(which)]]
            if fitting:
                waiting.remove(fitting[0])
                yield fitting[0]
            continue
        counter = f"{kind == FORWARD}{which}"
        stage, micro = stages[int(which)], counts[counter]
        counts[counter] += 1
        yield Action(kind, stage, micro)
        if kind == INPUTS:
            waiting.append(Action(WEIGHTS, stage, micro))
