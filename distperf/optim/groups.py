"""Which parameters the optimizer treats how, by their names. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from distperf.recipe.runspec import OptimizerSpec


@dataclass(frozen=True, order=True)
class Treatment:
    """What an update of a parameter is made with: a factor of the step's learning rate, and weight decay."""

    lr_scale: float
    weight_decay: float


def treatment(fqn: str, shape: Sequence[int], spec: OptimizerSpec) -> Treatment:
    """That of the first group whose patterns match the name; what it leaves open, and all other parameters, by rule.

    By rule matrices and embeddings decay; norms and biases (fewer than 2 dims) do not.
    """
    decay = spec.weight_decay if len(shape) >= 2 else 0.0
    group = next((g for g in spec.groups if matches(fqn, g.match)), None)
    if group is None:
        return Treatment(1.0, decay)
    return Treatment(group.lr_scale, decay if group.weight_decay is None else group.weight_decay)


def matches(fqn: str, patterns: Sequence[str]) -> bool:
    """Whether one of the patterns (as of file names: * ? [abc]; * crosses dots) is the whole name."""
    return any(fnmatchcase(fqn, pattern) for pattern in patterns)


def nearest_names(pattern: str, names: Sequence[str], count: int = 3) -> list[str]:
    """The names most like a pattern that matches none of them."""
    found = difflib.get_close_matches(pattern, names, n=count, cutoff=0.0)
    return list(found)
