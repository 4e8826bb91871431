"""Samples that are held back: none is trained on, each counts once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from train_program import data_spec

from distperf.data.opening import open_store, open_validation
from distperf.data.prepare import prepare_text
from distperf.data.samples import held_back
from distperf.data.store import SampleStore
from distperf.data.tokenizer import load_tokenizer
from distperf.data.validation import ValidationBatches
from distperf.errors import DataError
from distperf.model.loss import IGNORE
from distperf.recipe.runspec import DataSpec, EvalSpec


class Numbered:
    """Sample i is i, twice."""

    vocabulary = None
    content_hash = ""

    def __init__(self, num_samples: int) -> None:
        self.num_samples = num_samples

    def sample(self, index: int) -> np.ndarray:
        return np.array([[index], [index]])


def data(**changes) -> DataSpec:
    return data_spec(**{"seq_len": 1, **changes})


def dealt(store: SampleStore, world: int, micro: int, limit: int | None) -> list[ValidationBatches]:
    return [
        ValidationBatches(data(), store, EvalSpec(1, limit, micro), 7, rank, world) for rank in range(world)
    ]


@given(st.integers(1, 60), st.integers(1, 7), st.integers(1, 5), st.none() | st.integers(1, 70))
def test_each_sample_counts_once_over_any_number_of_ranks(
    held: int, world: int, micro: int, limit: int | None
):
    """Ranks have equally many batches of one shape; what stands in for a sample has no target."""
    ranks, counted = dealt(Numbered(held), world, micro, limit), []
    assert len({rank.count for rank in ranks}) == 1
    for rank in ranks:
        for index in range(rank.count):
            inputs, targets = rank.batch(99, index)
            assert inputs.shape == targets.shape == (micro, 1)
            counted += targets[targets != IGNORE].tolist()
    wanted = dealt(Numbered(held), 1, 1, limit)[0]
    assert sorted(counted) == sorted(int(wanted.batch(0, at)[1]) for at in range(wanted.count))
    assert len(set(counted)) == len(counted) == min(held, limit or held)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shards of 1000 tokens, no two alike in a row of them."""
    path = tmp_path_factory.mktemp("shards")
    for name in ("a", "b"):
        (path / f"{name}.txt").write_bytes(bytes(range(250)) * 4)
        prepare_text([str(path / f"{name}.txt")], load_tokenizer("byte"), path / name)
    return path


@pytest.mark.parametrize("share", [0.001, 0.1, 0.5])
def test_a_share_is_cut_off_the_end(folder, share):
    """No token of a held sample is in one that is trained on, and nothing but the cut is lost."""
    spec = data(tokens=(str(folder / "a"),), seq_len=16, validation_share=share)
    training, held = open_store(spec, 257), open_validation(spec, 257)
    windows = 1000 // 16
    assert training.num_samples == windows - held_back(windows, share)
    assert held is not None
    assert held.num_samples in (held_back(windows, share), held_back(windows, share) - 1)
    whole = open_store(data(tokens=(str(folder / "a"),), seq_len=16), 257)
    last, first = training.sample(training.num_samples - 1), held.sample(0)
    assert np.array_equal(last, whole.sample(training.num_samples - 1))
    assert first[0, 0] == (last[1, -1] + 1) % 250


def test_other_files_may_be_held_back(folder):
    """Folders beside tokens, files beside text; what is trained on too, or is too short, is refused."""
    own, other = str(folder / "a"), str(folder / "b")
    spec = data(tokens=(own,), seq_len=16, validation=(other,))
    assert open_store(spec, 257).num_samples == 62
    assert open_validation(spec, 257).num_samples == 62
    assert open_validation(data(tokens=(own,)), 257) is None
    with pytest.raises(DataError, match=r"which is trained on too\. Take it out of one"):
        open_validation(data(tokens=(own, other), validation=(other,)), 257)
    text = {"text": (f"{folder}/*.txt",), "validation": (f"{folder}/b.txt",)}
    with pytest.raises(DataError, match=r"b\.txt \(and 0 more\), which is trained on too"):
        open_validation(data(**text), 257)
    with pytest.raises(DataError, match=r"does not fill one sample of 5000 \+ 1 tokens"):
        open_validation(data(tokens=(own,), seq_len=5000, validation=(other,)), 257)
