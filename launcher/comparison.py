"""What was planned (plan.json) against what came: memory of a rank, seconds of a step and of its parts. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from launcher.figures import Figures
from launcher.follow import Seen
from launcher.series import numbers

KINDS = ("parameters", "gradients", "optimizer")
# Of a step: the planner's terms, and the parts that ranks measure (launcher.figures.PARTS) those seconds are found in.
STEP = {
    "computing": (("compute", "tensor"), ("forward", "backward")),
    "waiting": (("data", "pipeline", "bubble"), ("communication",)),
    "update": (("update", "offload"), ("optimizer",)),
}


@dataclass(frozen=True)
class Pair:
    """One figure: bytes or seconds; None where it is not known."""

    name: str
    planned: float | None
    came: float | None

    @property
    def off(self) -> str:
        """By how much it came out otherwise: `+3.4%`; empty where one of the two is not known."""
        if not self.planned or self.came is None:
            return ""
        return f"{(self.came - self.planned) / self.planned:+.1%}"


def memory(seen: Seen) -> list[Pair]:
    """Model state by kind, of the fullest rank, and all that a rank held (rank 0 tells its peak); bytes."""
    planned = seen.plan.get("per_rank") or {}
    held = {
        kind: max((rank.memory.get(f"{kind}_bytes", 0) for rank in seen.state.ranks), default=0) or None
        for kind in KINDS
    }
    peak = seen.last.get("peak_bytes")
    pairs = [Pair(kind, planned.get(f"{kind}_bytes"), held[kind]) for kind in KINDS]
    return _known([*pairs, Pair("in all", planned.get("total_bytes"), peak)])


def seconds(seen: Seen) -> list[Pair]:
    """A step, of late, and where it goes; with a pipeline, what waits for its bubble is in "waiting"."""
    terms: Mapping[str, float] = seen.plan.get("step_terms") or {}
    steps = [value for _, value in numbers(seen.recent, "step_s")]
    whole = Pair("a step", seen.plan.get("step_s"), statistics.median(steps) if steps else None)
    parts = [
        Pair(
            name,
            sum(terms.get(term, 0.0) for term in of_plan) if terms else None,
            _median(seen.figures, measured),
        )
        for name, (of_plan, measured) in STEP.items()
    ]
    return _known([whole, *parts])


def parallel(spec: Mapping[str, Any]) -> str:
    """How a run is divided, by its runspec: axes that divide anything, and what goes with them."""
    found: Mapping[str, Any] = spec.get("parallel", {})
    axes = [name for name in ("dp_replicate", "dp_shard", "cp", "tp", "pp") if found.get(name, 1) > 1]
    said = [f"{name} {found[name]}" for name in axes]
    said += [f"cp_method {found.get('cp_method')}"] if "cp" in axes else []
    said += [f"schedule {found.get('pp_schedule')}"] if "pp" in axes else []
    return ", ".join([f"zero {found.get('zero')}", *said])


def _median(figures: Figures, parts: Iterable[str]) -> float | None:
    """Seconds of these parts together, of the median rank."""
    sums: dict[int, float] = {}
    for part in parts:
        for rank, value in figures.part_s(part).items():
            sums[rank] = sums.get(rank, 0.0) + value
    return statistics.median(sums.values()) if sums else None


def _known(pairs: Iterable[Pair]) -> list[Pair]:
    return [pair for pair in pairs if pair.planned is not None or pair.came is not None]
