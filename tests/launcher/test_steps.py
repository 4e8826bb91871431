"""Steps between heartbeats: each is told of once, the newest counts."""

from __future__ import annotations

from launcher.steps import Steps, fold_steps


def test_heard_and_unkept():
    """The supervisor gets every tick's news, the journal one line for all of them, no sooner than it wants it."""
    steps = Steps()
    steps.take({0: 1, 1: 1})
    assert steps.heard() == {0: 1, 1: 1}
    assert steps.heard() == {}
    steps.take({0: 2, 1: 2})
    steps.take_metrics(0, 3)
    assert steps.unkept(2.0, 5.0) is None
    assert steps.unkept(6.0, 5.0) == {"0": 3, "1": 2}
    assert steps.unkept(20.0, 5.0) is None, "nothing new"


def test_fold_steps():
    """Ranks at the same step are one entry, however many they are."""
    assert fold_steps({0: 5, 1: 5, 2: 4, 7: 5}) == {"0-1,7": 5, "2": 4}
    assert fold_steps({}) == {}
