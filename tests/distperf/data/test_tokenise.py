"""Workers, and preparations that were interrupted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from distperf.data import prepare
from distperf.data.manifest import read_manifest
from distperf.data.parts import LEAST_BYTES
from distperf.data.prepare import main, prepare_text
from distperf.data.shards import TokenStore
from distperf.data.tokenizer import ByteTokenizer
from distperf.errors import DataError

pytestmark = pytest.mark.slow


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Three parts' worth of JSON lines, with a text before and after."""
    folder = tmp_path / "corpus"
    folder.mkdir()
    (folder / "a.txt").write_text("the first")
    row = json.dumps({"text": "x" * 1000}) + "\n"
    (folder / "b.jsonl").write_text(row * (2 * LEAST_BYTES // len(row) + 100))
    (folder / "c.txt").write_text("the last")
    return folder


def test_workers_make_what_one_process_makes(corpus, tmp_path, capsys):
    """The same shards in the same order, by any number of workers."""
    one = prepare_text([f"{corpus}/*"], ByteTokenizer(), tmp_path / "one", workers=1)
    assert main([f"--text={corpus}/*", f"--out={tmp_path / 'two'}", "--workers=2"]) == 0
    two = read_manifest(tmp_path / "two")
    assert (two.content_hash, two.documents, two.tokens) == (one.content_hash, one.documents, one.tokens)
    assert len(one.shards) == 3
    assert sorted(path.name for path in (tmp_path / "two").iterdir()) == sorted(
        ["manifest.json", *(shard.file for shard in one.shards)]
    )
    store = TokenStore([tmp_path / "two"])
    assert bytes(store.read(0, 9).tolist()) == b"the first"
    assert bytes(store.read(store.tokens - 9, 8).tolist()) == b"the last"


@pytest.mark.parametrize("workers", [1, 2])
def test_an_interrupted_preparation_goes_on(corpus, tmp_path, workers):
    """Parts that were done are not done again, and the shards are those of a preparation in one go."""
    out, whole = tmp_path / "out", prepare_text([f"{corpus}/*"], ByteTokenizer(), tmp_path / "whole")

    class Interrupted(Exception):
        pass

    def interrupt(done: int, total: int) -> None:
        if done > 1.5 * LEAST_BYTES:
            raise Interrupted

    with pytest.raises(Interrupted):
        prepare_text([f"{corpus}/*"], ByteTokenizer(), out, interrupt, workers=workers)
    assert not out.exists()
    seen: list[int] = []
    made = prepare_text([f"{corpus}/*"], ByteTokenizer(), out, lambda done, total: seen.append(done))
    assert all(done > LEAST_BYTES for done in seen)
    assert made.content_hash == whole.content_hash
    assert not list(tmp_path.glob(".out*"))


def test_what_a_worker_cannot_read_is_told_as_it_is(corpus, tmp_path):
    """A DataError crosses from the worker, and nothing that looks complete is left."""
    with (corpus / "b.jsonl").open("a") as file:
        file.write("{}\n")
    with pytest.raises(
        DataError, match=r"b\.jsonl, the line at byte \d+: an object with , but no text in 'text'"
    ):
        prepare_text([f"{corpus}/*"], ByteTokenizer(), tmp_path / "out", workers=2)
    assert not (tmp_path / "out").exists()


def test_two_do_not_make_one_folder(corpus, tmp_path):
    """The second is refused at once."""
    name = prepare.fingerprint(prepare.find_sources([f"{corpus}/*"]), "byte", "text")
    with (
        prepare._partial(tmp_path / "out", f"{name}-{prepare.SHARD_TOKENS}"),
        pytest.raises(DataError, match="another process is making it"),
    ):
        prepare_text([f"{corpus}/*"], ByteTokenizer(), tmp_path / "out")
