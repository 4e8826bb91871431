import pytest

from distperf.recipe.tensor_rules import indivisible, llama_units

UNITS = llama_units(heads=32, kv_heads=8, ffn=14336, seq_len=4096, pieces=2)


@pytest.mark.parametrize("tp", [1, 2, 4, 8])
def test_what_divides_everything_is_fine(tp: int):
    assert indivisible(tp, UNITS) is None


def test_what_does_not_is_named_with_the_numbers_that_would():
    """Each unit that cannot be divided, and every number of ranks that divides them all."""
    allowed = "equally; it takes 1, 2, 4 or 8"
    assert indivisible(16, UNITS) == f"16 ranks cannot divide model.kv_heads (8) {allowed}"
    every = "model.heads (32), model.kv_heads (8), model.ffn (14336), data.seq_len / 2 (2048)"
    assert indivisible(3, UNITS) == f"3 ranks cannot divide {every} {allowed}"
    assert indivisible(2, {"heads": 1}) == "2 ranks cannot divide heads (1) equally; it takes only 1"
