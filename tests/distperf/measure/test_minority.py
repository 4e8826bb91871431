"""Who is odd among ranks that must hold the same."""

from __future__ import annotations

from distperf.measure.minority import Disagreement, agree, disagreements, shared


def test_the_rank_that_most_contradict_is_odd():
    """In each tensor; what only one rank holds contradicts nobody."""
    held = [{"a": 1, "b": 2}, {"a": 1, "b": 2}, {"a": 9, "b": 2, "own": 5}, {"a": 1, "b": 2}]
    assert not agree(held)
    assert disagreements(held) == [Disagreement((2,), (0, 1, 3), ("a",))]
    assert shared(held) == {"a", "b"}
    held[2]["a"] = 1
    assert agree(held)
    assert disagreements(held) == []


def test_two_that_differ_are_both_odd():
    """Nobody can say which of two is right; four of which each has its own are no better."""
    assert disagreements([{"a": 1}, {"a": 2}]) == [Disagreement((0, 1), (), ("a",))]
    assert disagreements([{"a": each} for each in range(4)]) == [Disagreement((0, 1, 2, 3), (), ("a",))]
    assert disagreements([{"a": 1}, {"a": 2}, {"a": 1}, {"a": 2}])[0].odd == (0, 1, 2, 3)


def test_one_odd_rank_in_many_tensors_comes_first():
    """Tensors are gathered by who is odd in them."""
    held = [{"a": 1, "b": 1, "c": 1}, {"a": 1, "b": 1, "c": 7}, {"a": 5, "b": 5, "c": 1}]
    assert disagreements(held) == [Disagreement((2,), (0, 1), ("a", "b")), Disagreement((1,), (0, 2), ("c",))]
