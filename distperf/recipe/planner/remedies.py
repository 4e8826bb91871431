"""Ways out for a run that has no room: single changes that take less memory, the cheapest first. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf

from distperf.recipe.planner.candidates import Candidate, alternatives, evaluate
from distperf.recipe.planner.hardware import Hardware
from distperf.recipe.planner.steptime import RECOMPUTED
from distperf.recipe.planner.tiers import tiers_of
from distperf.recipe.runspec import RunSpec

# A change that frees less than this part of a rank's memory is no way out.
WORTHWHILE = 0.03


@dataclass(frozen=True)
class Remedy:
    """A change of one key: `slower` is how many times as long a step takes, by the estimate; inf: nobody knows."""

    key: str
    value: str
    total_bytes: int
    fits: bool | None
    slower: float


def remedies(spec: RunSpec, hardware: Hardware, ranks_per_host: int, count: int = 3) -> list[Remedy]:
    """The cheapest, those that fit before those that only help; of each key what spares most at the lowest price."""
    now = evaluate(spec, hardware, ranks_per_host)
    if now is None:
        return []
    enough = (1 - WORTHWHILE) * now.memory.total_bytes
    found = [
        Remedy(key, value, other.memory.total_bytes, other.fits, _slower(now, other))
        for key, value, other in _changes(spec, hardware, ranks_per_host)
        if other.memory.total_bytes <= enough
    ]
    ordered = sorted(found, key=lambda r: (r.fits is False, r.slower, r.total_bytes))
    best: dict[str, Remedy] = {}
    for remedy in ordered:
        best.setdefault(remedy.key, remedy)
    return list(best.values())[:count]


def _changes(spec: RunSpec, hardware: Hardware, ranks_per_host: int) -> Iterator[tuple[str, str, Candidate]]:
    """Alternatives that differ from the run in one key alone."""
    for other in alternatives(spec, ranks_per_host, spec.train.micro_batch, tiers_of(spec, hardware)):
        differs = [key for key, mine, theirs in _keys(spec, other) if mine != theirs]
        found = evaluate(other, hardware, ranks_per_host) if len(differs) == 1 else None
        if found is not None:
            value = next(theirs for key, _, theirs in _keys(spec, other) if key == differs[0])
            yield differs[0], value, found


def _keys(spec: RunSpec, other: RunSpec) -> list[tuple[str, str, str]]:
    pairs = {
        "train.micro_batch": (spec.train.micro_batch, other.train.micro_batch),
        "activation_checkpoint": (spec.activation_checkpoint, other.activation_checkpoint),
        "parallel.zero": (spec.parallel.zero, other.parallel.zero),
        "parallel.tp": (spec.parallel.tp, other.parallel.tp),
        "parallel.pp": (spec.parallel.pp, other.parallel.pp),
        "offload.optimizer": (spec.offload.optimizer, other.offload.optimizer),
    }
    return [(key, str(mine), str(theirs)) for key, (mine, theirs) in pairs.items()]


def _slower(now: Candidate, other: Candidate) -> float:
    """By the estimated times; where they are not known, by arithmetic, and a little for more and smaller passes. What
    another tier costs is known by times alone.
    """
    if now.time is not None and other.time is not None:
        return other.time.step_s / now.time.step_s
    if other.spec.offload != now.spec.offload:
        return inf
    mine, theirs = (RECOMPUTED[c.spec.activation_checkpoint] for c in (now, other))
    passes = other.spec.train.accumulation / now.spec.train.accumulation
    return (3 + theirs) / (3 + mine) * (1.02 if passes > 1 else 1.0)
