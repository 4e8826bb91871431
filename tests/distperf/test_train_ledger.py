"""Which samples a run trains on, told by the model itself, when ranks and batches change in the middle of an epoch."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from train_program import data_spec, make_spec, train

from distperf.checkpoint.manifest import list_checkpoints
from distperf.data.manifest import SCHEMA, Manifest, content_hash, write_manifest
from distperf.data.mixture import spread
from distperf.data.samples import sample_at
from distperf.data.shards import ShardWriter
from distperf.recipe.runspec import CheckpointSpec, FactorySpec, MixtureSpec, RunSpec

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

SEQ_LEN, WINDOWS, OTHERS = 4, 120, 20
VOCAB = SEQ_LEN * (WINDOWS + OTHERS) + 2


def write_row(folder: Path, first: int = 0, windows: int = WINDOWS) -> Path:
    """Shards in which each token is the one before and 1, so that a sample's first id says which one it is."""
    folder.mkdir()
    tokens = SEQ_LEN * windows + 1
    with ShardWriter(folder, VOCAB) as writer:
        writer.append(np.arange(first, first + tokens, dtype=np.uint32))
    shards = tuple(writer.shards)
    hashes = content_hash(shards, "uint16")
    write_manifest(
        folder, Manifest(SCHEMA, VOCAB, "uint16", VOCAB - 1, "t", "h", 1, tokens, 0, "", hashes, shards)
    )
    return folder


def part(tmp: Path, name: str, world: int, batch: int, steps: int, **changes) -> RunSpec:
    """A run on `world` ranks to step `steps`, with a ledger and a last checkpoint of its own."""
    folder = tmp / name
    (folder / "ledger").mkdir(parents=True)
    spec = make_spec(
        folder,
        world=world,
        steps=10,
        run_id=name,
        model=FactorySpec(
            "factory", "own_models:ledger", {"folder": str(folder / "ledger"), "vocab": VOCAB}, VOCAB
        ),
        data=data_spec(tokens=(str(tmp / "row"),), seq_len=SEQ_LEN),
        checkpoint=CheckpointSpec(0, True, 1, str(folder / "checkpoints")),
    )
    sizes = dataclasses.replace(spec.train, steps=steps, global_batch=batch, micro_batch=batch // world)
    return dataclasses.replace(spec, train=sizes, **changes)


def consumed(spec: RunSpec) -> list[set[int]]:
    """The samples of each step, over ranks."""
    return [{first // SEQ_LEN for first in step} for step in numbers_of(spec)]


def numbers_of(spec: RunSpec) -> list[set[int]]:
    """The first ids of the samples of each step, over ranks."""
    files = [path.read_text().splitlines() for path in Path(spec.model.args["folder"]).iterdir()]
    assert len(files) == spec.world_size
    steps = [[int(word) for line in lines for word in line.split()] for lines in zip(*files, strict=True)]
    assert all(len(samples) == len(set(samples)) for samples in steps)
    return [set(samples) for samples in steps]


def mixed_at(place: int) -> int:
    """The sample at a place of a mixture of three to one, of which each source has epochs of its own."""
    turns, source = divmod(place, 4)[0], spread([3, 1])[place % 4]
    if source == 0:
        return sample_at(3 * turns + spread([3, 1])[: place % 4].count(0), WINDOWS, 1)
    return WINDOWS + sample_at(turns, OTHERS, 1)


@pytest.mark.parametrize("kind", ["row", "mixture"])
def test_no_sample_is_skipped_or_repeated_over_four_two_and_three_ranks(tmp_path, kind):
    """4 -> 2 -> 3 ranks in the middle of an epoch, each with a batch of its own: one stream, in its order.

    Also of a mixture, read by workers; its sources are in their second, and seventh, epoch at the end.
    """
    write_row(tmp_path / "row")
    write_row(tmp_path / "other", SEQ_LEN * WINDOWS, OTHERS)
    weights = (MixtureSpec(str(tmp_path / "row"), 3), MixtureSpec(str(tmp_path / "other"), 1))
    data = {"data": data_spec(mixture=weights, workers=2, seq_len=SEQ_LEN)} if kind == "mixture" else {}
    first = part(tmp_path, "first", world=4, batch=12, steps=3, **data)
    second = part(tmp_path, "second", world=2, batch=8, steps=6, **data)
    third = part(tmp_path, "third", world=3, batch=15, steps=12, **data)
    train(first)
    train(second, resume=first.checkpoint.dir)
    train(third, resume=second.checkpoint.dir)
    ledger = [samples for spec in (first, second, third) for samples in consumed(spec)]
    assert [len(samples) for samples in ledger] == [12] * 3 + [8] * 3 + [15] * 6
    stream = iter(range(10**6))
    for samples in ledger:
        places = [next(stream) for _ in samples]
        at = mixed_at if kind == "mixture" else lambda place: sample_at(place, WINDOWS, 1)
        assert samples == {at(place) for place in places}
    assert sum(map(len, ledger)) > WINDOWS, "the next epoch has begun"


def test_other_samples_begin_at_their_first_and_it_is_said(tmp_path):
    """Another seed gives another order, in which no place means what it did."""
    write_row(tmp_path / "row")
    first = part(tmp_path, "first", world=1, batch=12, steps=2)
    train(first)
    second = part(tmp_path, "second", world=1, batch=12, steps=3)
    second = dataclasses.replace(second, train=dataclasses.replace(second.train, seed=2))
    ranks = train(second, resume=first.checkpoint.dir)
    assert "its data, data.seq_len or train.seed are not those of this run" in ranks.output
    assert consumed(second) == [{sample_at(place, WINDOWS, 2) for place in range(12)}]


@pytest.mark.parametrize(("function", "workers", "state"), [("kept", 1, {"next": 24}), ("numbers", 0, None)])
def test_an_iterable_dataset_goes_on_over_two_and_three_ranks(tmp_path, function, workers, state):
    """From the state that the checkpoint keeps, or, where there is none, by reading again, which is said."""
    data = data_spec(
        factory=f"own_data:{function}",
        args={"count": 50, "length": SEQ_LEN},
        seq_len=SEQ_LEN,
        workers=workers,
    )
    first = part(tmp_path, "first", world=2, batch=8, steps=3, data=data)
    second = part(tmp_path, "second", world=3, batch=9, steps=5, data=data)
    train(first)
    (saved,) = list_checkpoints(first.checkpoint.dir)
    assert saved.manifest.data_state == (state and {"epoch": 0, "taken": 24, "dataset": state})
    ranks = train(second, resume=first.checkpoint.dir)
    assert ("are read again and passed over" in ranks.output) == (state is None)
    assert numbers_of(first) == [set(range(start, start + 8)) for start in (0, 8, 16)]
    assert numbers_of(second) == [set(range(start, start + 9)) for start in (24, 33)]
