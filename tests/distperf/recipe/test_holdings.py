"""What the plan says a rank holds, against models that are really cut and counted by hand."""

from __future__ import annotations

import dataclasses

import pytest

from distperf.recipe.estimate import parameter_count
from distperf.recipe.holdings import rank_parameters
from distperf.recipe.presets import complete_shape
from distperf.recipe.runspec import ModelSpec, ParallelSpec
from distperf.recipe.schedules import SCHEDULES, stage_count

MODEL = ModelSpec(vocab=97, **complete_shape("llama-1m", {"layers": 8}))


def parallel(**changes: object) -> ParallelSpec:
    alone = ParallelSpec(2, 1, 1, 1, 1, 1, "ulysses", "1f1b", ())
    return dataclasses.replace(alone, **changes)


def test_alone_a_rank_holds_everything():
    """Without pp and tp it is the model's size."""
    assert rank_parameters(MODEL, parallel()) == (parameter_count(MODEL),)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("tied", [False, True])
def test_stages_together_hold_the_model(schedule, tied):
    """Once each; a tied embedding is counted on both stages (K06), but for a rank that has the two."""
    model = dataclasses.replace(MODEL, tied_embedding=tied)
    count = stage_count(schedule, 2)
    spec = parallel(pp=2, pp_schedule=schedule, pp_layers=(8 // count,) * count)
    apart = tied and not SCHEDULES[schedule].v_shaped
    extra = model.vocab * model.hidden if apart else 0
    assert sum(rank_parameters(model, spec)) == parameter_count(model) + extra


def test_tensor_ranks_divide_matrices_but_not_norms():
    """An uneven vocabulary rounds up; norms are whole on each rank."""
    norms = (2 * MODEL.layers + 1) * MODEL.hidden
    embeddings = 2 * MODEL.vocab * MODEL.hidden
    layers = parameter_count(MODEL) - norms - embeddings
    assert rank_parameters(MODEL, parallel(tp=2)) == (norms + layers // 2 + 2 * 49 * MODEL.hidden,)
