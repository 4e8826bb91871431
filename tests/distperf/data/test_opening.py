"""From what a recipe says to samples: mixtures of shards and text."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from train_program import data_spec

from distperf.data.loader import Loader
from distperf.data.opening import open_samples
from distperf.data.prepare import prepare_text
from distperf.data.tokenizer import load_tokenizer
from distperf.errors import DataError
from distperf.recipe.runspec import DataSpec, MixtureSpec, TrainSpec

A, B = b"a" * 999, b"b" * 199  # 100 and 20 samples of 10 tokens, but for the end of document


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Shards of a, text of b; the cache, and the current folder."""
    monkeypatch.setenv("DISTPERF_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_bytes(A)
    (tmp_path / "b.txt").write_bytes(B)
    prepare_text(["a.txt"], load_tokenizer("byte"), tmp_path / "a")
    return tmp_path


def mixture(*weights: int, **changes) -> DataSpec:
    items = (MixtureSpec(path, weight) for path, weight in zip(("a", "b*.txt"), weights, strict=True))
    return data_spec(mixture=tuple(items), seq_len=10, **changes)


def loader(spec: DataSpec, batch: int) -> Loader:
    return Loader(
        spec, open_samples(spec, 257).training, TrainSpec(99, batch, batch, 1, 1, None, False, 0), 0, 1
    )


def test_every_batch_has_the_shares_that_were_asked_for(folder: Path):
    """Three to one, of shards and of text, also when the smaller source has long begun again."""
    batches = loader(mixture(3, 1), 8)
    for step in range(1, 60):
        letters = Counter(batches.batch(step, 0)[0][:, 0].tolist())
        assert letters == {ord("a"): 6, ord("b"): 2}


def test_a_share_of_every_source_is_held_back(folder: Path):
    """And other files may be, if they are not trained on."""
    samples = open_samples(mixture(3, 1, validation_share=0.1), 257)
    assert samples.validation is not None
    held = Counter(chr(samples.validation.sample(i)[0, 0]) for i in range(samples.validation.num_samples))
    assert held == {"a": 10, "b": 2}
    (folder / "c.txt").write_bytes(b"c" * 50)
    others = open_samples(mixture(3, 1, validation=("c.txt",)), 257).validation
    assert others is not None
    assert others.num_samples == 5
    with pytest.raises(DataError, match=r"b\.txt \(and 0 more\), which is trained on too"):
        open_samples(mixture(3, 1, validation=("b.txt", "c.txt")), 257)


def test_other_weights_are_another_order(folder: Path):
    """So that a resume does not take one place for another."""
    hashes = {
        open_samples(mixture(*weights), 257).training.content_hash for weights in ((3, 1), (1, 3), (3, 2))
    }
    assert len(hashes) == 3


def test_too_little_is_refused_source_by_source(folder: Path):
    """I06: 19 samples for a share of 20 of 40."""
    loader(mixture(1, 1), 38)
    with pytest.raises(
        DataError,
        match=r"data\.mixture\[1\] b\*\.txt: 19 samples do not fill its share of one global batch, 20 of 40\.",
    ):
        loader(mixture(1, 1), 40)


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("nowhere", r"no text file matches 'nowhere' in "),
        ("cache", "cache"),
        ("empty.txt", "all 1 files are empty"),
    ],
)
def test_a_source_that_is_none_is_refused(folder: Path, path: str, said: str):
    """By its name: neither a folder of shards nor files of text."""
    (folder / "cache").mkdir()
    (folder / "empty.txt").touch()
    spec = data_spec(mixture=(MixtureSpec("a", 1), MixtureSpec(path, 1)))
    with pytest.raises(DataError, match=said):
        open_samples(spec, 257)


def test_sources_of_different_tokenizers_are_refused(folder: Path):
    """Their ids would mean different words."""
    (folder / "t.json").write_text(TOKENIZER)
    prepare_text(["b.txt"], load_tokenizer("t.json"), folder / "b")
    spec = data_spec(mixture=(MixtureSpec("a", 1), MixtureSpec("b", 1)))
    with pytest.raises(DataError, match=r"different tokenizers: a has byte \(257 ids.*, b has .*t\.json"):
        open_samples(spec, 257)


TOKENIZER = """{"version": "1.0", "truncation": null, "padding": null, "normalizer": null, "post_processor": null,
"added_tokens": [{"id": 1, "content": "</s>", "single_word": false, "lstrip": false, "rstrip": false,
"normalized": false, "special": true}], "pre_tokenizer": null, "decoder": null,
"model": {"type": "WordLevel", "vocab": {"[UNK]": 0, "</s>": 1, "b": 2}, "unk_token": "[UNK]"}}"""
