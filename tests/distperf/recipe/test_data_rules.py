"""What the keys of `data` allow, and weights as whole numbers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distperf.recipe.data_rules import MOST_PERIOD, whole_weights
from distperf.recipe.resolve import resolve

HEAD = "model: {preset: llama-1m, vocab: 300}\ntrain: {steps: 1, global_batch: 8}\n"


@pytest.mark.parametrize(
    ("weights", "whole"),
    [
        ([], ()),
        ([3.0], (1,)),
        ([0.7, 0.2, 0.1], (7, 2, 1)),
        ([70, 20, 10], (7, 2, 1)),
        ([1e-4, 9999e-4], (1, 9999)),
        ([1 / 3, 2 / 3], (1, 2)),
        ([3.14159, 2.71828], (35135, 30401)),
        ([1, 1e-9], (MOST_PERIOD, 0)),
    ],
)
def test_weights_are_taken_as_they_are_written(weights: list[float], whole: tuple[int, ...]):
    """Decimal fractions are exact; others are met to one of 65,536."""
    assert whole_weights(weights) == whole


@given(st.lists(st.floats(1e-3, 1e6), min_size=1, max_size=12))
def test_shares_are_met(weights: list[float]):
    """No share is off by more than one of 65,536, and they add up to a round."""
    whole = whole_weights(weights)
    assert sum(whole) <= MOST_PERIOD
    for part, weight in zip(whole, weights, strict=True):
        assert abs(part / sum(whole) - weight / sum(weights)) <= 1 / MOST_PERIOD + 1e-12


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ("{mixture: [{path: a, weight: 0}]}", "data.mixture[0].weight is 0; it takes a number above 0"),
        ("{mixture: [{path: a, weight: -1}]}", "data.mixture[0].weight is -1; it takes a number above 0"),
        ("{mixture: [{path: a}]}", "missing key data.mixture[0].weight"),
        (
            "{mixture: [{path: a, weight: 1}, {path: a, weight: 2}]}",
            "data.mixture[1].path, a, is there twice",
        ),
        ("{mixture: [{path: a, weight: 1}, {path: b, weight: 1e-9}]}", "less than one of 65,536 samples"),
        ("{mixture: [{path: a, weight: 1}], text: [b]}", "text and mixture are given"),
        ("{factory: a.b}", "data.factory is a.b; it takes package.module:function"),
        ("{text: [a], args: {n: 1}}", "data.args are the arguments of data.factory, which is not given"),
        ('{factory: "a:b", boundary: predict}', "data.boundary is about documents"),
        ('{factory: "a:b", validation: [c]}', "data.validation beside data.factory is a share"),
    ],
)
def test_what_cannot_be_is_refused(problems, data: str, said: str):
    """In one line, with the key and what it takes."""
    (problem,) = problems(f"{HEAD}data: {data}\n")
    assert said in problem


def test_ids_of_a_factory_are_the_models(problems):
    """Nothing else says how many there are."""
    (problem,) = problems(
        'model: {preset: llama-1m}\ntrain: {steps: 1, global_batch: 8}\ndata: {factory: "a:b"}\n'
    )
    assert "missing key model.vocab (the number of token ids that data.factory gives)" in problem


def test_a_resolved_mixture_says_what_it_takes(load):
    """Whole numbers, with their reason."""
    recipe = load(f"{HEAD}data: {{mixture: [{{path: a, weight: 0.75}}, {{path: b, weight: 0.25}}]}}\n")
    spec = resolve(recipe, run_id="r", world_size=1, checkpoint_dir="/c")
    assert [(item.path, item.weight) for item in spec.data.mixture] == [("a", 3), ("b", 1)]
    assert spec.reasons["data.mixture"] == "of every 4 samples 3 from a, 1 from b"
    assert spec.data.boundary == "mask"
