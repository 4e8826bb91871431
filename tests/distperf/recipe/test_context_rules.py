from hypothesis import given
from hypothesis import strategies as st

from distperf.recipe.context_rules import context_problem


def test_ulysses_names_the_sizes_that_divide_the_heads() -> None:
    """Query and key heads of a rank, after tensor parallelism, are divided; the fault says by what they can be."""
    key, text = context_problem("ulysses", 3, tp=2, heads=16, kv_heads=8, seq_len=96) or ("", "")
    assert key == "parallel.cp"
    assert text == (
        "parallel.cp is 3; with cp_method ulysses it must divide a rank's heads, 8 of queries and 4 of keys and "
        "values: 1, 2, 4. cp_method: ring takes any"
    )
    assert context_problem("ring", 3, tp=2, heads=16, kv_heads=8, seq_len=96) is None


def test_a_sequence_is_cut_into_equal_pieces() -> None:
    """Ring cuts a sequence into two pieces a rank; the nearest lengths are named."""
    key, text = context_problem("ring", 4, tp=1, heads=8, kv_heads=8, seq_len=1004) or ("", "")
    assert key == "data.seq_len"
    assert text == "data.seq_len is 1004, not a multiple of 4 ranks x 2 pieces (ring); nearest: 1000, 1008"
    assert context_problem("ulysses", 4, tp=1, heads=8, kv_heads=8, seq_len=1004) is None


@given(
    cp=st.integers(1, 16), kv_heads=st.integers(1, 16), times=st.integers(1, 4), seq_len=st.integers(1, 64)
)
def test_ulysses_takes_exactly_what_divides(cp: int, kv_heads: int, times: int, seq_len: int) -> None:
    """No fault means that every rank gets whole heads of both kinds and whole rows."""
    fault = context_problem("ulysses", cp, tp=1, heads=kv_heads * times, kv_heads=kv_heads, seq_len=seq_len)
    assert (fault is None) == (kv_heads % cp == 0 and seq_len % cp == 0)
