from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distperf.data.manifest import SCHEMA, Manifest, content_hash, dtype_for, write_manifest
from distperf.data.shards import ShardWriter, TokenStore
from distperf.errors import DataError


def make(folder: Path, ids: list[int], vocab: int, shard_tokens: int = 1000, eod: int = 0) -> Path:
    folder.mkdir(parents=True)
    with ShardWriter(folder, vocab, shard_tokens) as writer:
        writer.append(np.array(ids, dtype=np.uint32))
    shards, dtype = tuple(writer.shards), dtype_for(vocab)
    write_manifest(
        folder,
        Manifest(
            SCHEMA, vocab, dtype, eod, "test", "hash", 1, len(ids), 0, "", content_hash(shards, dtype), shards
        ),
    )
    return folder


@pytest.mark.parametrize("ids", [[65535], [65535, 65536], [65535, 65536, 70000, 119546]])
def test_i01_ids_come_back_as_given(tmp_path: Path, ids: list[int]):
    """Ids around and above 16 bits are stored unchanged, by the narrowest dtype that holds the vocabulary."""
    store = TokenStore([make(tmp_path / "s", ids, max(ids) + 1)])
    assert store.read(0, len(ids)).tolist() == ids
    assert store.max_id == max(ids)


def test_i01_an_id_outside_the_vocabulary_is_refused_before_it_is_narrowed(tmp_path: Path):
    """A cast to 16 bits would have made 65536 a valid 0."""
    with (
        ShardWriter(tmp_path, vocab=65536) as writer,
        pytest.raises(DataError, match="token id 65536 is outside the vocabulary of 65536"),
    ):
        writer.append(np.array([1, 65536], dtype=np.uint32))


def test_i01_a_damaged_shard_shows_when_read(tmp_path: Path):
    """An id above everything the manifest knows never reaches the model's embedding."""
    folder = make(tmp_path / "s", [1, 2, 3], 300)
    (folder / "shard-00000.bin").write_bytes(np.array([1, 40000, 3], dtype="<u2").tobytes())
    with pytest.raises(DataError, match="id 40000"):
        TokenStore([folder]).read(0, 3)


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(
    counts=st.lists(st.integers(0, 30), min_size=1, max_size=4),
    shard_tokens=st.integers(1, 12),
    data=st.data(),
)
def test_any_window_equals_the_stream(tmp_path_factory, counts: list[int], shard_tokens: int, data):
    """Whatever the folders and shard sizes, reading is slicing one long row."""
    root = tmp_path_factory.mktemp("w")
    stream = np.arange(sum(counts)) % 250
    parts = np.split(stream, np.cumsum(counts)[:-1])
    store = TokenStore(
        [make(root / str(i), part.tolist(), 257, shard_tokens) for i, part in enumerate(parts)]
    )
    assert store.tokens == len(stream)
    start = data.draw(st.integers(0, len(stream)))
    count = data.draw(st.integers(0, len(stream) - start))
    assert store.read(start, count).tolist() == stream[start : start + count].tolist()


def test_content_hash_follows_content_and_order(tmp_path: Path):
    """Equal tokens give equal hashes in any folder; another token or order does not."""
    one, same, other = (
        make(tmp_path / n, ids, 257) for n, ids in (("a", [1, 2]), ("b", [1, 2]), ("c", [1, 3]))
    )
    assert TokenStore([one]).content_hash == TokenStore([same]).content_hash
    assert TokenStore([one]).content_hash != TokenStore([other]).content_hash
    assert TokenStore([one, other]).content_hash != TokenStore([other, one]).content_hash


def test_shards_of_different_tokenizers_are_refused(tmp_path: Path):
    """Two folders with other ids or another end of document are never read as one stream."""
    folders = [make(tmp_path / "a", [1], 257, eod=0), make(tmp_path / "b", [1], 257, eod=5)]
    with pytest.raises(DataError, match="different tokenizers"):
        TokenStore(folders)
