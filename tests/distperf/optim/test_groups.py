"""Which parameters are treated how."""

from __future__ import annotations

import pytest

from distperf.optim.groups import Treatment, treatment
from distperf.recipe.runspec import GroupSpec, OptimizerSpec, ScheduleSpec

GROUPS = (
    GroupSpec(("embed_tokens.*", "lm_head.*"), lr_scale=0.5, weight_decay=None),
    GroupSpec(("*.bias",), lr_scale=2.0, weight_decay=0.3),
    GroupSpec(("*",), lr_scale=1.0, weight_decay=0.0),
)


def spec(*groups: GroupSpec) -> OptimizerSpec:
    return OptimizerSpec("adamw", 1e-2, (0.9, 0.95), 1e-8, 0.1, ScheduleSpec("constant", 0, 0, 0.0), groups)


@pytest.mark.parametrize(
    ("name", "shape", "expected"),
    [
        ("embed_tokens.weight", (7, 4), Treatment(0.5, 0.1)),
        ("lm_head.bias", (7,), Treatment(0.5, 0.0)),
        ("layers.0.mlp.bias", (7,), Treatment(2.0, 0.3)),
        ("layers.0.mlp.weight", (7, 4), Treatment(1.0, 0.0)),
    ],
)
def test_the_first_group_that_matches_counts(name, shape, expected):
    """What the group leaves open goes by rule: a bias does not decay unless its group says so."""
    assert treatment(name, shape, spec(*GROUPS)) == expected


def test_without_groups_matrices_decay_and_vectors_do_not():
    """Norms and biases have fewer than 2 dims."""
    assert treatment("norm.weight", (4,), spec()) == Treatment(1.0, 0.0)
    assert treatment("scale", (), spec()) == Treatment(1.0, 0.0)
    assert treatment("up.weight", (4, 4), spec()) == Treatment(1.0, 0.1)
