"""When the passes of a pipeline's step happen: rank x time, the bubble, and what is held meanwhile. Pure.

Time counts in slots: a forward pass takes one, a backward pass two, each half of a split one one. Every pass begins
as soon as its rank is free and what it needs has arrived; sending takes no time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import ge

from distperf.recipe.schedules import (
    BACKWARD,
    FORWARD,
    INPUTS,
    WEIGHTS,
    Action,
    order,
    stage_count,
    stages_of,
)

SLOTS = {FORWARD: 1, BACKWARD: 2, INPUTS: 1, WEIGHTS: 1}


@dataclass(frozen=True)
class Pass:
    """An action with its time."""

    action: Action
    start: float
    stop: float


@dataclass(frozen=True)
class Timeline:
    """A step of a pipeline; `ranks[r]` is what rank r does, in time."""

    ranks: tuple[tuple[Pass, ...], ...]

    @property
    def span(self) -> float:
        """Slots from the first pass to the end of the last."""
        return max(row[-1].stop for row in self.ranks)

    @property
    def bubble_share(self) -> float:
        """Part of the ranks' time in which they wait."""
        busy = sum(done.stop - done.start for row in self.ranks for done in row)
        return 1 - busy / (self.span * len(self.ranks))

    @property
    def in_flight(self) -> dict[int, int]:
        """Stage -> most micro-batches whose activations it holds at a time: forward done, weights' gradients not."""
        held: Counter[int] = Counter()
        most: Counter[int] = Counter()
        for action in (done.action for row in self.ranks for done in row):
            held[action.stage] += {FORWARD: 1, BACKWARD: -1, WEIGHTS: -1}.get(action.kind, 0)
            most[action.stage] = max(most[action.stage], held[action.stage])
        return dict(sorted(most.items()))


def timeline(
    schedule: str, pp: int, micro_batches: int, stage_costs: Sequence[float] | None = None
) -> Timeline:
    """The step of a schedule; stages cost alike, or as `stage_costs` says (1: as counted in slots)."""
    costs = stage_costs or (1,) * stage_count(schedule, pp)
    orders = [order(schedule, pp, micro_batches, rank) for rank in range(pp)]
    rows: list[list[Pass]] = [[] for _ in orders]
    ends: dict[Action, float] = {}
    while any(len(row) < len(actions) for row, actions in zip(rows, orders, strict=True)):
        before = len(ends)
        for row, actions in zip(rows, orders, strict=True):
            while len(row) < len(actions):
                action = actions[len(row)]
                ready = _ready(action, ends, len(costs) - 1)
                if ready is None:
                    break
                start = max(ready, row[-1].stop if row else 0)
                ends[action] = start + SLOTS[action.kind] * costs[action.stage]
                row.append(Pass(action, start, ends[action]))
        assert len(ends) > before, f"{schedule} with {pp} ranks, {micro_batches} micro-batches would hang"
    return Timeline(tuple(map(tuple, rows)))


def _ready(action: Action, ends: dict[Action, float], last: int) -> float | None:
    """When what the action needs has arrived; None: that is not known yet."""
    stage, micro = action.stage, action.micro
    if action.kind == FORWARD:
        return ends.get(Action(FORWARD, stage - 1, micro)) if stage else 0
    if action.kind == WEIGHTS:
        return ends.get(Action(INPUTS, stage, micro))
    if stage == last:
        return ends.get(Action(FORWARD, stage, micro))
    return next(
        (ends[a] for kind in (BACKWARD, INPUTS) if (a := Action(kind, stage + 1, micro)) in ends), None
    )


@lru_cache(maxsize=4096)
def bubble_share(schedule: str, pp: int, micro_batches: int) -> float:
    """Part of the ranks' time in which they wait. Of many micro-batches only some are gone through.

    With a stage a rank, it waits pp - 1 times a forward and a backward pass, whatever their order.
    """
    if stage_count(schedule, pp) == pp:
        return (pp - 1) / (micro_batches + pp - 1)
    few = _enough(schedule, pp, micro_batches)
    step = timeline(schedule, pp, few)
    works = step.span * (1 - step.bubble_share) * micro_batches / few
    waits = step.span * step.bubble_share
    return waits / (waits + works)


@dataclass(frozen=True)
class Held:
    """Micro-batches of which a rank's stages hold something, in the order of its stages.

    `whole`: gone forward, and without their weights' gradients. `halfway`: of these, those of which the weights' half
    of the backward pass alone is left.
    """

    whole: tuple[int, ...]
    halfway: tuple[int, ...]

    def tops(self, other: Held) -> bool:
        """It is more than the other, or as much everywhere."""
        return all(map(ge, self.whole + self.halfway, other.whole + other.halfway))


@lru_cache(maxsize=4096)
def held_at_backward(schedule: str, pp: int, micro_batches: int, rank: int) -> dict[int, tuple[Held, ...]]:
    """Stage of the rank -> the most that all of its stages hold when a backward pass of that one begins.

    Where stages take turns in holding most, there are several such states.
    """
    few = micro_batches if schedule == "gpipe" else _enough(schedule, pp, micro_batches)
    own = stages_of(schedule, pp, rank)
    whole, halfway = dict.fromkeys(own, 0), dict.fromkeys(own, 0)
    states: dict[int, set[Held]] = {stage: set() for stage in own}
    for action in order(schedule, pp, few, rank):
        if action.kind in (BACKWARD, INPUTS):
            states[action.stage].add(Held(tuple(whole.values()), tuple(halfway.values())))
        whole[action.stage] += {FORWARD: 1, BACKWARD: -1, WEIGHTS: -1}.get(action.kind, 0)
        halfway[action.stage] += {INPUTS: 1, WEIGHTS: -1}.get(action.kind, 0)
    return {
        stage: tuple(state for state in found if not any(o.tops(state) for o in found - {state}))
        for stage, found in states.items()
    }


def _enough(schedule: str, pp: int, micro_batches: int) -> int:
    """Micro-batches after which a step only repeats its middle."""
    few = 4 * stage_count(schedule, pp)
    return few if micro_batches > few and micro_batches % pp == 0 else micro_batches
