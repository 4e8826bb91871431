"""Layers to stages, and what a schedule asks of sizes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distperf.errors import BatchError, MeshError
from distperf.recipe.runspec import ModelSpec
from distperf.recipe.schedules import SCHEDULES, allows, rank_of, stage_count, stages_of
from distperf.recipe.stages import (
    Costs,
    auto_micro_batch,
    check_micro_batches,
    layers_per_stage,
    model_costs,
    split_layers,
    stages,
)


def alike(layers: int, embedding: float = 0, head: float = 0) -> Costs:
    return Costs((1.0,) * layers, embedding, head)


def test_thirty_layers_on_four_stages_are_all_placed_f01():
    assert split_layers(alike(30), 4) == (8, 8, 7, 7)


def test_the_head_counts_as_work_of_the_last_stage():
    assert split_layers(alike(32, head=1.5), 4) == (9, 8, 8, 7)


@given(st.integers(1, 40), st.integers(1, 12), st.floats(0, 5), st.floats(0, 5))
def test_a_split_places_every_layer_and_none_is_cheaper(layers, count, embedding, head):
    """Every stage has a layer, and moving one across a border makes no stage cheaper than the dearest."""
    count = min(count, layers)
    costs = alike(layers, embedding, head)
    split = split_layers(costs, count)
    assert sum(split) == layers
    assert len(split) == count
    assert min(split) >= 1
    dearest = max(map(costs.of, stages(split)))
    for at in range(count - 1):
        for change in (-1, 1):
            moved = list(split)
            moved[at], moved[at + 1] = moved[at] + change, moved[at + 1] - change
            if min(moved) >= 1:
                assert max(map(costs.of, stages(moved))) >= dearest - 1e-9


def test_costs_are_flops_of_the_model():
    """Forward costs of all parts are a third of what MFU counts, but for the embedding's look-up."""
    flops = pytest.importorskip("distperf.model.flops")
    shape = ModelSpec("llama", 4, 64, 4, 2, 128, 1000, False, 1e4, 1e-5, 0.0)
    costs = model_costs(shape, 256)
    assert 3 * (sum(costs.layers) + costs.head) == flops.flops_per_token(shape, 256)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("pp", [2, 3, 4])
def test_every_stage_is_held_by_one_rank(schedule, pp):
    held = {stage: rank for rank in range(pp) for stage in stages_of(schedule, pp, rank)}
    assert held == {stage: rank_of(schedule, pp, stage) for stage in range(stage_count(schedule, pp))}


def test_the_first_rank_of_a_v_has_the_first_and_the_last_stage():
    assert stages_of("zbv", 4, 0) == (0, 7)
    assert stages_of("dualpipev", 4, 3) == (3, 4)
    assert stages_of("interleaved_1f1b", 4, 0) == (0, 4)


@pytest.mark.parametrize(
    ("schedule", "given_layers", "text"),
    [
        ("1f1b", None, "parallel.pp is 8: 8 stages .* for 6 layers.*at most pp 6 fits"),
        ("zbv", None, r"16 stages \(pp 8 x 2 a rank with pp_schedule zbv\) for 6 layers.*at most pp 3 fits"),
    ],
)
def test_more_stages_than_layers_are_refused(schedule, given_layers, text):
    with pytest.raises(MeshError, match=text):
        layers_per_stage(alike(6), schedule, 8, given_layers)


def test_a_split_by_hand_must_place_every_layer_f01():
    """The sum and the number of stages are checked; what fits is taken as it is."""
    assert layers_per_stage(alike(30), "1f1b", 4, (8, 8, 7, 7)) == (8, 8, 7, 7)
    with pytest.raises(MeshError, match=r"places 28 layers \(7 \+ 7 \+ 7 \+ 7\); the model has 30"):
        layers_per_stage(alike(30), "1f1b", 4, (7, 7, 7, 7))
    with pytest.raises(MeshError, match=r"pp_layers has 4 stages; it takes one number for each of 8 stages"):
        layers_per_stage(alike(30), "zbv", 4, (8, 8, 7, 7))


@pytest.mark.parametrize(
    ("schedule", "count", "fitting"),
    [
        ("1f1b", 3, "at least 4, one for each stage; nearest that fit: 4"),
        ("interleaved_1f1b", 9, "a multiple of 4 always fits; nearest that fit: 8, 10"),
        ("dualpipev", 7, "at least 8, one for each stage; nearest that fit: 8"),
    ],
)
def test_micro_batches_that_a_schedule_cannot_run_are_refused_with_what_it_can(schedule, count, fitting):
    with pytest.raises(BatchError, match=f"cannot run {count} micro-batches.*{fitting}"):
        check_micro_batches(schedule, 4, count)


@given(st.sampled_from(sorted(SCHEDULES)), st.integers(2, 8), st.integers(1, 200))
def test_auto_takes_a_micro_batch_that_the_schedule_can_run(schedule, pp, share):
    """None only where no size up to the largest would do."""
    chosen = auto_micro_batch(share, schedule, pp)
    if chosen is None:
        assert not any(allows(schedule, pp, share // n) for n in range(1, 9) if share % n == 0)
    else:
        assert share % chosen == 0
        assert allows(schedule, pp, share // chosen)
