"""Ways out for a run that has no room: single changes that take less memory, the cheapest first. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import inf

from distperf.recipe.planner.candidates import Candidate, alternatives, evaluate
from distperf.recipe.planner.hardware import Hardware
from distperf.recipe.planner.steptime import RECOMPUTED
from distperf.recipe.planner.tiers import TIERS, tiers_of
from distperf.recipe.runspec import RunSpec

# A change that frees less than this part of a rank's memory is no way out.
WORTHWHILE = 0.03
OPTIMIZER, PARAMS = "offload.optimizer", "offload.params"
SOME_DRIVE = "FOLDER_ON_A_DRIVE"  # in place of a path, where the recipe names none


@dataclass(frozen=True)
class Remedy:
    """A change of one key: `slower` is how many times as long a step takes, by the estimate; inf: nobody knows.

    `with_it`: what the key asks of others, as `key=value`.
    """

    key: str
    value: str
    with_it: tuple[str, ...]
    total_bytes: int
    fits: bool | None
    slower: float


def remedies(spec: RunSpec, hardware: Hardware, ranks_per_host: int, count: int = 3) -> list[Remedy]:
    """The cheapest, those that fit before those that only help; of each key what spares most at the lowest price."""
    if not spec.offload.path:
        spec = replace(spec, offload=replace(spec.offload, path=(SOME_DRIVE,)))
    now = evaluate(spec, hardware, ranks_per_host)
    if now is None:
        return []
    enough = (1 - WORTHWHILE) * now.memory.total_bytes
    found = [
        Remedy(key, value, with_it, other.memory.total_bytes, other.fits, _slower(now, other))
        for key, value, with_it, other in _changes(spec, hardware, ranks_per_host)
        if other.memory.total_bytes <= enough
    ]
    ordered = sorted(found, key=lambda r: (r.fits is False, r.slower, r.total_bytes))
    best: dict[str, Remedy] = {}
    for remedy in ordered:
        best.setdefault(remedy.key, remedy)
    return list(best.values())[:count]


def _changes(
    spec: RunSpec, hardware: Hardware, ranks_per_host: int
) -> Iterator[tuple[str, str, tuple[str, ...], Candidate]]:
    """Alternatives that differ from the run in one key alone; parameters go where optimizer state goes."""
    tiers = [
        tier
        for tier in tiers_of(spec, hardware, params=True)
        if TIERS.index(tier.optimizer) >= TIERS.index(spec.offload.optimizer)
    ]
    for other in alternatives(spec, ranks_per_host, spec.train.micro_batch, tiers):
        differs = [(key, theirs) for key, mine, theirs in _keys(spec, other) if mine != theirs]
        rest = [key for key, _ in differs[:-1]]
        if not differs or (rest and (differs[-1][0], rest) != (PARAMS, [OPTIMIZER])):
            continue
        found = evaluate(other, hardware, ranks_per_host)
        if found is not None:
            key, value = differs[-1]
            asked = [*differs[:-1], *(_path(spec, value) if key in (OPTIMIZER, PARAMS) else ())]
            yield key, value, tuple(f"{name}={what}" for name, what in asked), found


def _path(spec: RunSpec, tier: str) -> list[tuple[str, str]]:
    """What must become of `offload.path`, which goes with drives alone."""
    named = SOME_DRIVE not in spec.offload.path
    if named == (tier == "nvme"):
        return []
    return [("offload.path", "null" if named else SOME_DRIVE)]


def _keys(spec: RunSpec, other: RunSpec) -> list[tuple[str, str, str]]:
    """Key, what the run has, what the other has; `offload.params` last."""
    pairs = {
        "train.micro_batch": (spec.train.micro_batch, other.train.micro_batch),
        "activation_checkpoint": (spec.activation_checkpoint, other.activation_checkpoint),
        "parallel.zero": (spec.parallel.zero, other.parallel.zero),
        "parallel.tp": (spec.parallel.tp, other.parallel.tp),
        "parallel.pp": (spec.parallel.pp, other.parallel.pp),
        OPTIMIZER: (spec.offload.optimizer, other.offload.optimizer),
        PARAMS: (spec.offload.params, other.offload.params),
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
