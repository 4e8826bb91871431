"""Parameter counts and state bytes, against published sizes and the table of the design."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distperf.recipe.estimate import model_state, parameter_count
from distperf.recipe.presets import PRESETS, complete_shape
from distperf.recipe.runspec import ModelSpec


def spec(preset: str, vocab: int) -> ModelSpec:
    return ModelSpec(vocab=vocab, **complete_shape(preset, {}))


@pytest.mark.parametrize(
    ("preset", "vocab", "published"),
    [
        ("llama-1b", 128256, 1_235_814_400),
        ("llama-3b", 128256, 3_212_749_824),
        ("llama-8b", 128256, 8_030_261_248),
        ("llama-13b", 32000, 13_015_864_320),
        ("llama-34b", 32000, 33_743_970_304),
        ("llama-70b", 128256, 70_553_706_496),
        ("llama-70b", 32000, 68_976_648_192),
    ],
)
def test_published_models_have_their_published_size(preset: str, vocab: int, published: int):
    """To the parameter."""
    assert parameter_count(spec(preset, vocab)) == published


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_has_the_size_it_is_named_after(preset: str):
    """Within 10 percent, with the vocabulary that its documentation says."""
    text = preset.removeprefix("llama-")
    named = float(text[:-1]) * {"m": 1e6, "b": 1e9}[text[-1]]
    vocab = 257 if named <= 12e6 else 8192 if named <= 28e6 else 32000
    assert parameter_count(spec(preset, vocab)) == pytest.approx(named, rel=0.1)


def test_a_tied_head_costs_nothing():
    """The embedding is counted once."""
    tied = complete_shape("llama-1m", {"tied_embedding": True})
    assert parameter_count(spec("llama-1m", 300)) - parameter_count(ModelSpec(vocab=300, **tied)) == 300 * 128


# n parameters, precision, zero, accumulation -> bytes of (parameters, gradients, optimizer) a parameter, and which
# of them are divided
TABLE = [
    ("fp32", 0, 1, (4, 4, 8), ""),
    ("fp32", 1, 1, (4, 4, 8), "o"),
    ("fp32", 2, 4, (4, 4, 8), "go"),
    ("fp32", 3, 1, (4, 4, 8), "pgo"),
    ("bf16", 0, 1, (2, 2, 12), ""),
    ("bf16", 0, 2, (2, 4, 12), ""),
    ("bf16", 1, 1, (2, 2, 12), "o"),
    ("bf16", 2, 1, (2, 2, 12), "go"),
    ("bf16", 2, 2, (2, 4, 12), "go"),
    ("bf16", 3, 1, (4, 4, 8), "pgo"),
    ("bf16", 3, 2, (4, 4, 8), "pgo"),
]


@pytest.mark.parametrize(("precision", "zero", "accumulation", "each", "divided"), TABLE)
def test_state_follows_the_table(
    precision: str, zero: int, accumulation: int, each: tuple[int, ...], divided: str
):
    """Every row, over 1, 2 and 3 shards; what is divided rounds up to whole parameters."""
    model = spec("llama-1m", 257)
    count = parameter_count(model)
    for shards in (1, 2, 3):
        state = model_state(count, precision, zero, shards, accumulation)
        if zero == 3 and shards == 1:  # runs as stage 2
            continue
        parts = [-(-count // shards) if name in divided else count for name in "pgo"]
        found = (state.parameters_bytes, state.gradients_bytes, state.optimizer_bytes)
        assert found == tuple(size * part for size, part in zip(each, parts, strict=True))
        assert bool(state.notes) == (precision == "bf16" and zero == 3)


@given(st.integers(0, 2), st.integers(2, 64), st.sampled_from(["fp32", "bf16"]), st.integers(1, 3))
def test_a_higher_stage_never_takes_more(zero: int, shards: int, precision: str, accumulation: int):
    """Up to ZeRO-2 in bf16, whose ZeRO-3 is another engine; all the way in fp32."""
    if precision == "bf16" and zero == 2:
        return
    count = parameter_count(spec("llama-1m", 257))
    states = [model_state(count, precision, stage, shards, accumulation) for stage in (zero, zero + 1)]
    totals = [state.parameters_bytes + state.gradients_bytes + state.optimizer_bytes for state in states]
    assert totals[1] <= totals[0]
