"""The batch equation."""

import re

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from distperf.errors import BatchError
from distperf.recipe.batch import Batch, fit_batch

COUNT = st.integers(1, 300)


@given(COUNT, st.none() | st.integers(1, 20), st.integers(1, 40))
def test_the_equation_holds_or_is_refused_with_numbers_that_do(
    global_batch: int, micro: int | None, size: int
):
    """What comes back satisfies the equation; every number an error advises does too."""
    try:
        batch = fit_batch(global_batch, micro, size)
    except BatchError as error:
        advised = re.search(r"global_batch (\d+(?:, \d+)*)", str(error).partition("nearest")[2])
        assert advised
        for number in map(int, advised.group(1).split(", ")):
            fit_batch(number, micro, size)
        if worlds := re.search(r"world size of (\d+(?:, \d+)*)", str(error)):
            for number in map(int, worlds.group(1).split(", ")):
                fit_batch(global_batch, micro, number)
        return
    assert batch.global_batch == global_batch == batch.micro_batch * batch.accumulation * size
    assert micro in (None, batch.micro_batch)


@given(COUNT, st.integers(1, 40))
def test_auto_micro_batch_is_the_largest_divisor_up_to_8(share: int, size: int):
    """Of a rank's share."""
    batch = fit_batch(share * size, None, size)
    assert batch.micro_batch <= 8
    assert not any(share % larger == 0 for larger in range(batch.micro_batch + 1, min(share, 8) + 1))


def test_256_over_8_and_over_7_ranks():
    """J06: computed with the data-parallel size; the error shows all numbers and the nearest valid ones."""
    assert fit_batch(256, 4, 8) == Batch(256, micro_batch=4, accumulation=8, data_parallel_size=8)
    with pytest.raises(BatchError) as caught:
        fit_batch(256, None, 7)
    assert str(caught.value) == (
        "global_batch 256 is not a multiple of 7 (7 data-parallel ranks); "
        "nearest that fit: global_batch 252, 259, or a world size of 4, 8"
    )
    with pytest.raises(
        BatchError, match=r"of 28 \(7 data-parallel ranks x micro_batch 4\).* 252, 280, or .* 4, 8$"
    ):
        fit_batch(256, 4, 7)
    with pytest.raises(BatchError, match=r"a world size of 16, 32$"):
        fit_batch(256, 4, 7, ranks_per_replica=4)


@given(st.integers(1, 50), st.integers(51, 100))
def test_fewer_sequences_than_ranks(global_batch: int, size: int):
    """Refused; the nearest batch is one sequence a rank, and 0 is never advised."""
    assume(size % global_batch)
    with pytest.raises(BatchError, match=rf"global_batch {size}, or a world size of {global_batch}$"):
        fit_batch(global_batch, None, size)
