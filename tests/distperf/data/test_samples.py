from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distperf.data.samples import batch_positions, check_enough, num_windows, permute, sample_at
from distperf.errors import DataError
from distperf.recipe.runspec import TrainSpec


def train(micro: int, accumulation: int, world: int, seed: int = 1) -> TrainSpec:
    return TrainSpec(100, micro * accumulation * world, micro, accumulation, seed, None, False, 0)


def step_of(step: int, world: int, spec: TrainSpec) -> list[int]:
    """All positions of a step, over ranks and micro-batches."""
    return [
        g
        for rank in range(world)
        for m in range(spec.accumulation)
        for g in batch_positions((step - 1) * spec.global_batch, m, rank, world, spec)
    ]


@given(size=st.integers(1, 400), seed=st.integers(-5, 2**70), epoch=st.integers(0, 2**40))
def test_every_epoch_is_a_permutation(size: int, seed: int, epoch: int):
    """Each sample exactly once."""
    assert sorted(permute(i, size, seed, epoch) for i in range(size)) == list(range(size))


@given(size=st.integers(2**32, 2**50), index=st.integers(0, 2**32 - 1))
def test_a_large_permutation_costs_nothing(size: int, index: int):
    """One element of 2**50 without making the rest."""
    assert 0 <= permute(index, size, 1, 0) < size


@pytest.mark.parametrize("size", [3, 5, 9])
def test_no_sample_has_a_favourite_place(size: int):
    """Over epochs each sample comes first, and each pair of neighbours appears, about equally often."""
    epochs = 1000
    orders = [[permute(i, size, 7, epoch) for i in range(size)] for epoch in range(epochs)]
    for place in (0, size - 1):
        counts = Counter(order[place] for order in orders)
        chi_square = sum((counts[i] - epochs / size) ** 2 / (epochs / size) for i in range(size))
        assert chi_square < (size - 1) + 5 * (2 * (size - 1)) ** 0.5 + 5
    pairs = Counter((order[0], order[1]) for order in orders)
    assert len(pairs) == size * (size - 1)


def test_i08_order_differs_by_epoch_and_seed_and_is_reproducible():
    """Two epochs on two ranks: each covers all 12 samples without overlap, in different orders, twice the same."""
    spec = train(micro=1, accumulation=3, world=2)

    def epochs(seed: int) -> list[list[int]]:
        stream = [sample_at(g, 12, seed) for step in (1, 2, 3, 4) for g in sorted(step_of(step, 2, spec))]
        return [stream[:12], stream[12:]]

    first, second = epochs(1)
    assert sorted(first) == sorted(second) == list(range(12))
    assert first != second
    assert epochs(1) == [first, second]
    assert epochs(2) != [first, second]


@given(
    factors=st.tuples(st.integers(1, 4), st.integers(1, 4), st.integers(1, 4)),
    step=st.integers(1, 10**9),
)
def test_a_step_is_the_same_set_for_every_world(factors: tuple[int, int, int], step: int):
    """Any split of one global batch into ranks, accumulation and micro-batch covers it once."""
    a, b, c = factors
    whole = list(range((step - 1) * a * b * c, step * a * b * c))
    for micro, accumulation, world in ((a, b, c), (c, a, b), (b, c, a), (a * b * c, 1, 1), (1, 1, a * b * c)):
        assert sorted(step_of(step, world, train(micro, accumulation, world))) == whole


def test_i04_ranks_never_end_unevenly():
    """With 22 samples and a global batch of 4, both ranks have a full batch at every step; epochs just join."""
    spec = train(micro=2, accumulation=1, world=2)
    seen = [sample_at(g, 22, 1) for step in range(1, 12) for g in sorted(step_of(step, 2, spec))]
    assert all(
        len(batch_positions((s - 1) * spec.global_batch, 0, r, 2, spec)) == 2
        for s in range(1, 12)
        for r in (0, 1)
    )
    assert sorted(seen[:22]) == sorted(seen[22:44]) == list(range(22))


@pytest.mark.parametrize("samples", [0, 3])
def test_i06_less_than_a_global_batch_is_refused_with_both_numbers(samples: int):
    """Refused at the start, not an empty loader or a loss of 0.0 for ever."""
    with pytest.raises(DataError, match=rf"{samples} samples do not fill one global batch of 8"):
        check_enough(samples, 8, "data")
    check_enough(8, 8, "data")


@given(tokens=st.integers(0, 300), seq_len=st.integers(1, 40))
def test_every_token_is_a_target_once(tokens: int, seq_len: int):
    """Windows overlap by one: targets are tokens 1, 2, ... without gap, all but fewer than seq_len at the end."""
    count = num_windows(tokens, seq_len)
    targets = [i * seq_len + 1 + j for i in range(count) for j in range(seq_len)]
    assert targets == list(range(1, count * seq_len + 1))
    assert not targets or targets[-1] < tokens
    assert tokens - 1 - len(targets) < seq_len
