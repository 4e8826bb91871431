import math
from pathlib import Path

import numpy as np
import pytest
import torch
from train_program import data_spec

from distperf.data.loader import Loader
from distperf.data.manifest import SCHEMA, Manifest, content_hash, dtype_for, write_manifest
from distperf.data.opening import open_store
from distperf.data.shards import ShardWriter
from distperf.data.store import SyntheticStore, WindowStore
from distperf.errors import DataError
from distperf.model.loss import IGNORE
from distperf.recipe.runspec import DataSpec, TrainSpec

E = 9  # end of document


def data(folder: Path | None, seq_len: int, boundary: str = "predict") -> DataSpec:
    tokens = (str(folder),) if folder else ()
    return data_spec(tokens=tokens, synthetic=folder is None, seq_len=seq_len, boundary=boundary)


def train(micro: int, accumulation: int = 1, world: int = 1) -> TrainSpec:
    return TrainSpec(20, micro * accumulation * world, micro, accumulation, 1, None, False, 0)


def make(folder: Path, ids: list[int], vocab: int = 10) -> Path:
    folder.mkdir()
    with ShardWriter(folder, vocab) as writer:
        writer.append(np.array(ids, dtype=np.uint32))
    shards, dtype = tuple(writer.shards), dtype_for(vocab)
    hashes = content_hash(shards, dtype)
    write_manifest(folder, Manifest(SCHEMA, vocab, dtype, E, "t", "h", 1, len(ids), 0, "", hashes, shards))
    return folder


def table(loader: Loader, count: int) -> list[tuple[list[int], list[int]]]:
    """All samples of an epoch, in the order of their text."""
    rows = [tuple(part[0].tolist() for part in loader.batch(step, 0)) for step in range(1, count + 1)]
    return sorted(rows, key=lambda row: DOCUMENTS.index(row[0][0]))


DOCUMENTS = [1, 2, 3, E, 4, 5, E]


@pytest.mark.parametrize(
    ("boundary", "seq_len", "expected"),
    [
        ("predict", 4, [([1, 2, 3, E], [2, 3, E, 4])]),
        ("mask", 4, [([1, 2, 3, E], [2, 3, E, IGNORE])]),
        ("predict", 3, [([1, 2, 3], [2, 3, E]), ([E, 4, 5], [4, 5, E])]),
        ("mask", 3, [([1, 2, 3], [2, 3, E]), ([E, 4, 5], [IGNORE, 5, E])]),
    ],
)
def test_i10_targets_equal_the_hand_made_table(tmp_path: Path, boundary: str, seq_len: int, expected):
    """Documents [1,2,3,E] and [4,5,E]: the policy decides whether 4 is predicted; no token is lost at the joint."""
    spec = data(make(tmp_path / "s", DOCUMENTS), seq_len, boundary)
    loader = Loader(spec, open_store(spec, 10), train(1), 0, 1)
    assert table(loader, len(expected)) == expected


def test_batches_of_all_ranks_are_the_same_samples_for_any_world(tmp_path: Path):
    """What a step trains on does not depend on ranks and accumulation; rows are (inputs, inputs moved by one)."""
    spec = data(make(tmp_path / "s", [i * i % 7 for i in range(200)]), 4)
    store = open_store(spec, 10)

    def step(number: int, micro: int, accumulation: int, world: int) -> list[list[int]]:
        loaders = [
            Loader(spec, store, train(micro, accumulation, world), rank, world) for rank in range(world)
        ]
        batches = [loader.batch(number, m) for loader in loaders for m in range(accumulation)]
        for inputs, targets in batches:
            assert inputs.shape == targets.shape == (micro, 4)
            assert inputs.dtype == targets.dtype == torch.int64
            assert torch.equal(inputs[:, 1:], targets[:, :-1].where(targets[:, :-1] != IGNORE, inputs[:, 1:]))
        return sorted(row for inputs, _ in batches for row in inputs.tolist())

    for number in (1, 5, 1000):
        whole = step(number, 12, 1, 1)
        assert step(number, 2, 3, 2) == step(number, 1, 3, 4) == step(number, 1, 1, 12) == whole


@pytest.mark.parametrize("kind", ["tokens", "synthetic"])
def test_g06_a_resumed_run_reads_what_the_straight_run_reads(tmp_path: Path, kind: str):
    """Stopped at step 7 of 20, with ranks regrouped: steps 8 to 20 are the same samples, as nothing is consumed."""
    spec = data(make(tmp_path / "s", list(range(9)) * 30) if kind == "tokens" else None, 4)
    straight = Loader(spec, open_store(spec, 10), train(2, 2, 1), 0, 1)
    steps = {n: torch.cat([straight.batch(n, m)[0] for m in (0, 1)]) for n in range(1, 21)}
    resumed = [Loader(spec, open_store(spec, 10), train(2, 1, 2), rank, 2) for rank in (0, 1)]
    for n in range(8, 21):
        assert torch.equal(torch.cat([loader.batch(n, 0)[0] for loader in resumed]), steps[n])


@pytest.mark.parametrize(("tokens", "samples"), [(0, 0), (13, 3)])
def test_i06_less_than_a_global_batch_is_refused(tmp_path: Path, tokens: int, samples: int):
    """3 samples, or none, for a global batch of 8: refused when the loader is made, with both numbers."""
    spec = data(make(tmp_path / "s", [1] * tokens), 4)
    with pytest.raises(DataError, match=rf"{samples} samples do not fill one global batch of 8"):
        Loader(spec, open_store(spec, 10), train(8), 0, 1)


def test_data_with_ids_the_model_lacks_is_refused(tmp_path: Path):
    """Both numbers and the way out, instead of an index error in an embedding."""
    spec = data(make(tmp_path / "s", [1, 9, 2, 3, 4, 5]), 4)
    with pytest.raises(
        DataError, match=r"token id 9, but the model's vocabulary is 9. Set model.vocab to 10"
    ):
        open_store(spec, 9)
    assert isinstance(open_store(spec, 10), WindowStore)


def test_text_goes_through_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A recipe that names text trains on its bytes."""
    monkeypatch.setenv("DISTPERF_CACHE", str(tmp_path / "cache"))
    (tmp_path / "a.txt").write_text("abcdefgh")
    spec = data_spec(text=(f"{tmp_path}/*.txt",), seq_len=8)
    store = open_store(spec, 257)
    inputs, targets = Loader(spec, store, train(1), 0, 1).batch(1, 0)
    assert bytes(inputs[0].tolist()) == b"abcdefgh"
    assert targets[0].tolist() == [*b"bcdefgh", 256]


def test_synthetic_ids_are_a_function_of_the_sample():
    """In range, equal when asked again, different between samples, and with the entropy that is promised."""
    store = SyntheticStore(vocab=50, seq_len=4000)
    samples = [store.sample(i) for i in range(10)]
    assert all(np.array_equal(samples[i], store.sample(i)) for i in (3, 0))
    assert len({tuple(sample[0]) for sample in samples}) == 10
    counts = np.bincount(np.concatenate([sample[0] for sample in samples]), minlength=50)
    assert len(counts) == 50
    assert counts.min() > 0
    shares = counts / counts.sum()
    assert -(shares * np.log(shares)).sum() == pytest.approx(math.log(50) - 0.656, abs=0.01)
