"""Dropout by what it falls on: random to look at, and the same however rows are divided."""

from __future__ import annotations

import hashlib
import math

import pytest
import torch
from torch import Tensor

from distperf.model.dropout import Draws, Dropout, attach_draws, drop_mask, mix64
from distperf.model.span import Span

CPU = torch.device("cpu")
SAMPLES, ROWS, FEATURES = 8, 256, 256


def key(text: str) -> Tensor:
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return torch.tensor(int.from_bytes(digest, "little", signed=True))


def mask(text: str, p: float = 0.5) -> Tensor:
    return drop_mask(key(text), torch.arange(SAMPLES), torch.arange(ROWS), FEATURES, p)


def signs(text: str) -> Tensor:
    """A mask of p 0.5 as +1 and -1: any mean of products of n of them is normal with deviation 1 / sqrt(n)."""
    return mask(text).double() * 2 - 1


def deviations(products: Tensor) -> float:
    """How many standard deviations the mean is from what independent signs give."""
    return abs(float(products.mean())) * math.sqrt(products.numel())


def dropout(p: float, seed: int = 1, name: str = "layers.0.mlp_dropout") -> tuple[Dropout, Draws]:
    module, draws = Dropout(p), Draws(seed, CPU)
    attach_draws(module, draws, name)
    return module, draws


def test_mixing_is_splitmix64() -> None:
    """On signed tensors the same 64 bits come out as from the published function on unsigned numbers."""
    ones = 2**64 - 1

    def published(value: int) -> int:
        value = value + 0x9E3779B97F4A7C15 & ones
        value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & ones
        value = (value ^ value >> 27) * 0x94D049BB133111EB & ones
        return value ^ value >> 31

    values = [0, 1, -1, 2**62, 12345678901234567, -98765432109876543]
    assert [int(m) & ones for m in mix64(torch.tensor(values))] == [published(v & ones) for v in values]


@pytest.mark.parametrize("p", [0.5, 0.1, 0.01, 0.999])
def test_the_share_that_is_dropped_is_p(p: float) -> None:
    """Over half a million elements, within four standard deviations."""
    dropped = mask("share", p)
    assert abs(float(dropped.double().mean()) - p) < 4 * math.sqrt(p * (1 - p) / dropped.numel())


def test_elements_are_dropped_independently() -> None:
    """Neighbours on each dim, rectangles of rows and features, and other modules tell nothing of an element."""
    found = signs("a")
    for dim in range(3):
        for lag in (1, 2, 3, 4, 7):
            count = found.shape[dim] - lag
            assert deviations(found.narrow(dim, 0, count) * found.narrow(dim, lag, count)) < 4.5, (dim, lag)
    rows = found.flatten(0, 1)
    for lag in (1, 64, 256):  # an affine mix would show here: the product of the corners would be constant
        top, bottom = rows[:-lag], rows[lag:]
        corners = top[:, :-1] * top[:, 1:] * bottom[:, :-1] * bottom[:, 1:]
        assert deviations(corners) < 4.5, lag
    assert deviations(found * signs("b")) < 4.5
    for dims in ((0, 1), (2,)):
        count = found.numel() // found.sum(dims).numel()
        assert 0.75 < float(found.sum(dims).var()) / count < 1.25


def test_masks_follow_seed_module_and_sample() -> None:
    """Each alone gives another mask; the same ones give the same, whenever asked."""
    x = torch.ones(2, 6, 64)

    def dropped(seed: int = 1, name: str = "layers.0.mlp_dropout", first: int = 0) -> Tensor:
        module, draws = dropout(0.5, seed, name)
        draws.at(first)
        return module(x)

    assert torch.equal(dropped(), dropped())
    assert torch.equal(dropped()[1], dropped(first=1)[0])
    for other in (dropped(seed=2), dropped(name="layers.1.mlp_dropout"), dropped(first=1)):
        assert not torch.equal(other, dropped())


@pytest.mark.parametrize("span", [Span((1,), 4), Span((1, 6), 8)])
def test_a_rank_with_some_rows_drops_what_one_process_would_f13(span: Span) -> None:
    """Masks of divided rows are parts of the whole mask; those of copies are equal; resuming changes nothing."""
    x = torch.randn(3, 32, 16)
    whole, draws = dropout(0.5)
    copy, other_draws = dropout(0.5)
    part, part_draws = dropout(0.5)
    part.span = span
    torch.manual_seed(0)
    for first in (0, 3, 6, 3):  # the last as after a resume
        for each in (draws, other_draws, part_draws):
            each.at(first)
        torch.rand(7)  # some other use of the generator, on one rank only
        rows = span.positions(8, CPU)
        assert torch.equal(part(x[:, rows]), whole(x)[:, rows])
        assert torch.equal(copy(x), whole(x))


def test_values_and_gradients_are_scaled_where_kept() -> None:
    """Kept elements are divided by 1 - p, both ways; dropped ones are 0 whatever they were; dtype stays."""
    module, _ = dropout(0.2)
    x = torch.full((1, 4, 8), 3.0, dtype=torch.bfloat16).requires_grad_()
    out = module(x)
    out.sum().backward()
    assert set(out.flatten().tolist()) == {0.0, 3.75}
    assert torch.equal(x.grad, (out.detach() != 0) * torch.tensor(1.25, dtype=torch.bfloat16))
    assert torch.isfinite(module(torch.full((1, 64, 64), math.inf))).any()


def test_nothing_is_dropped_in_evaluation_nor_with_p_0() -> None:
    """The very tensor comes back; with p 0 no draws are wanted."""
    module, _ = dropout(0.5)
    x = torch.randn(1, 2, 3)
    assert module.eval()(x) is x
    assert Dropout(0.0)(x) is x


def test_draws_of_an_earlier_forward_can_be_had_again() -> None:
    """As a recomputation needs while other micro-batches are under way."""
    module, draws = dropout(0.5)
    x = torch.ones(1, 4, 8)
    draws.at(5)
    first, out = draws.first, module(x)
    draws.at(6)
    with draws.again(first):
        assert torch.equal(module(x), out)
    assert not torch.equal(module(x), out)
