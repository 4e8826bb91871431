"""The choice of tokens."""

from __future__ import annotations

import pytest
import torch

from distperf.generation.pick import Choice, pick


def generators(count: int, seed: int = 1) -> list[torch.Generator]:
    return [torch.Generator().manual_seed(seed + place) for place in range(count)]


def test_temperature_zero_takes_the_likeliest():
    """Whatever the seed."""
    logits = torch.tensor([[0.0, 3.0, 1.0], [5.0, 4.0, 0.0]])
    assert pick(logits, Choice(temperature=0), generators(2)).tolist() == [1, 0]


@pytest.mark.parametrize(
    ("choice", "wanted"),
    [
        (Choice(), [0.5, 0.3, 0.2]),
        (Choice(top_p=0.6), [0.625, 0.375, 0.0]),
        (Choice(top_p=0.5), [1.0, 0.0, 0.0]),
        (Choice(top_p=0.0), [1.0, 0.0, 0.0]),
        (Choice(temperature=0.5), [0.25 / 0.38, 0.09 / 0.38, 0.04 / 0.38]),
    ],
)
def test_frequencies_are_those_asked_for(choice: Choice, wanted: list[float]):
    """Probabilities under temperature, cut to the likeliest ones that have top_p together, at least one."""
    count = 4000
    logits = torch.tensor([0.5, 0.3, 0.2]).log().expand(count, 3)
    chosen = pick(logits, choice, generators(count))
    found = torch.bincount(chosen, minlength=3) / count
    torch.testing.assert_close(found, torch.tensor(wanted), rtol=0, atol=0.03)
    assert all(share > 0 for share, expected in zip(found, wanted, strict=True) if expected)
    assert all(share == 0 for share, expected in zip(found, wanted, strict=True) if not expected)


def test_a_sample_does_not_depend_on_the_others():
    """The same draw alone as in a batch."""
    logits = torch.randn(4, 50)
    together = pick(logits, Choice(), generators(4))
    alone = [
        int(pick(logits[place : place + 1], Choice(), generators(4)[place : place + 1])) for place in range(4)
    ]
    assert together.tolist() == alone
