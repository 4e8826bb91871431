"""Datasets of the user's own behind the interface of all samples."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from train_program import data_spec

from distperf.data.loader import Loader
from distperf.data.opening import open_samples
from distperf.data.store import SampleStore
from distperf.errors import DataError
from distperf.recipe.runspec import DataSpec, TrainSpec


def own(function: str, **args) -> DataSpec:
    return data_spec(factory=f"own_data:{function}", args=args, seq_len=4)


def open_(function: str, **args) -> SampleStore:
    return open_samples(own(function, **args), 100).training


def loader(spec: DataSpec, rank: int, world: int, batch: int = 4, steps: int = 40) -> Loader:
    train = TrainSpec(steps, batch, batch // world, 1, 1, None, False, 0)
    return Loader(spec, open_samples(spec, 100).training, train, rank, world)


def first_ids(loaders: list[Loader], step: int) -> list[int]:
    return [row for loader in loaders for row in loader.batch(step, 0)[0][:, 0].tolist()]


def test_items_are_ids_or_inputs_and_targets():
    """Lists, arrays or tensors; of ids, targets are the ids that follow."""
    inputs, targets = open_("rows").sample(3).tolist()
    assert (inputs, targets) == ([3, 0, 0, 0], [0, 0, 0, 0])
    inputs, targets = open_("pairs").sample(3).tolist()
    assert (inputs, targets) == ([3, 3, 3, 3], [-100, 3, 3, 3])


@pytest.mark.parametrize("function", ["rows", "numbers"])
def test_each_sample_once_over_ranks_and_epochs(function: str):
    """40 samples in batches of 4: ten steps are an epoch, whether or not the dataset knows of epochs and ranks."""
    spec = own(function)
    ranks = [loader(spec, rank, 2) for rank in range(2)]
    epochs = [[id_ for step in range(1, 11) for id_ in first_ids(ranks, step + turn)] for turn in (0, 10)]
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(40))
    assert (epochs[0] == epochs[1]) == (function == "numbers"), "an iterable has an order of its own"


def test_g06_noise_belongs_to_the_sample_and_not_to_who_reads_it():
    """Draws of every generator: equal for any ranks and after a resume, other ones in the next epoch."""
    spec = own("rows", noise=True)
    straight = loader(spec, 0, 1)
    steps = {step: straight.batch(step, 0)[0] for step in range(1, 21)}
    resumed = [loader(spec, rank, 2) for rank in range(2)]
    for step in range(8, 21):
        assert np.array_equal(np.concatenate([r.batch(step, 0)[0] for r in resumed]), steps[step])
    seen = {tuple(row) for rows in steps.values() for row in rows.tolist()}
    assert len(seen) == 80, "no sample looks the same twice"


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("raises", 'in broken\n    return row["missing"]'),
        ("short", r"a list, (2,) of int64; it takes 5 token ids (data.seq_len + 1), or a pair of 4 inputs"),
        ("float", r"a list, (5,) of float64; it takes 5 token ids"),
        ("text", r"a str, () of <U5; it takes 5 token ids"),
        ("large", "token id 100, but the model's vocabulary is 100"),
    ],
)
def test_a_bad_sample_is_named(fault: str, said: str):
    """With the function, the sample, and for an exception the user's own frames and no others."""
    store = open_("bad", fault=fault)
    with pytest.raises(DataError) as caught:
        store.sample(7)
    text = str(caught.value)
    assert text.startswith("data.factory own_data:bad, sample 7")
    assert said in text
    assert "distperf/data" not in text


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (own("nothing"), "returned an int; it takes a torch Dataset or IterableDataset"),
        (own("missing"), "missing has no such name"),
        (own("rows", size=3), "data.args are given as keywords to"),
        (own("rows", count="x"), "'str' object cannot be interpreted as an integer"),
        (data_spec(factory="no_such:f"), "no module no_such in"),
        (
            data_spec(factory="own_data:numbers", validation_share=0.1),
            "nobody knows how many samples a Numbers has",
        ),
    ],
)
def test_what_is_no_dataset_is_refused_when_it_is_opened(spec: DataSpec, said: str):
    """Before training, with the name of the function."""
    with pytest.raises(DataError) as caught:
        open_samples(spec, 100)
    assert said in str(caught.value)


def test_too_little_is_refused_with_numbers_i06():
    """I06: at the start where the length is known, else when the first round is over."""
    with pytest.raises(DataError, match="3 samples do not fill one global batch of 4"):
        loader(own("rows", count=3), 0, 1)
    with pytest.raises(
        DataError, match="numbers: 3 samples and no more, which do not fill one global batch of 4"
    ):
        loader(own("numbers", count=3), 0, 1).batch(1, 0)


def test_a_share_is_held_back():
    """The last samples, which are never trained on."""
    spec = data_spec(factory="own_data:rows", seq_len=4, validation_share=0.1)
    samples = open_samples(spec, 100)
    assert samples.validation is not None
    assert [samples.validation.sample(index)[0, 0] for index in range(4)] == [36, 37, 38, 39]
    assert (samples.training.num_samples, samples.validation.num_samples) == (36, 4)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("function", ["kept", "numbers"])
def test_an_iterable_goes_on_where_it_was(tmp_path: Path, function: str, workers: int):
    """From its own state without reading again what was trained on; without a state by reading it again. Mid-epoch,
    in the second round, on other ranks."""
    args = {"count": 10, "log": str(tmp_path / "log")}
    spec = data_spec(factory=f"own_data:{function}", args=args, seq_len=4, workers=workers)
    straight = loader(spec, 0, 1)
    expected = [first_ids([straight], step) for step in range(1, 7)]
    assert expected[3] == [2, 3, 4, 5]
    stopped = loader(spec, 1, 2)
    for step in range(1, 4):
        stopped.batch(step, 0)
    assert (stopped.stream.state is not None) == (function == "kept")
    for each in (straight, stopped):
        each.close()
    (tmp_path / "log").write_text("")
    resumed = [loader(spec, rank, 2) for rank in range(2)]
    for each in resumed:
        each.stream.go_on(3, 12, stopped.stream.state)
    assert [first_ids(resumed, step) for step in range(4, 7)] == expected[3:]
    for each in resumed:
        each.close()
    read = (tmp_path / "log").read_text().splitlines()
    assert ("0:0" in read) == (function == "numbers")
    assert "1:2" in read
