"""Documents out of every kind of file, and files that are not what they seem."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from distperf.data.documents import Extent, can_be_cut, kind_of, read_documents
from distperf.data.sources import find_sources
from distperf.errors import DataError

TEXTS = ["first", "", "two\nlines \N{SNOWMAN}", "last"]


def documents(path: Path, field: str = "text") -> list[str]:
    (source,) = find_sources([str(path)])
    extent = Extent(source, 0, source.size_bytes)
    return [document.read().decode() for document in read_documents(extent, field)]


def lines(field: str = "text") -> bytes:
    return "".join(json.dumps({"id": 1, field: text}) + "\n" for text in TEXTS).encode() + b"\n"


def packed(path: Path, content: bytes) -> Path:
    if path.suffix == ".zst":
        content = pytest.importorskip("zstandard").compress(content)
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def table(texts: list, field: str = "text") -> bytes:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    sink = arrow.BufferOutputStream()
    parquet.write_table(arrow.table({"id": list(range(len(texts))), field: texts}), sink, row_group_size=2)
    return sink.getvalue().to_pybytes()


@pytest.mark.parametrize("ending", ["", ".gz", ".zst"])
def test_every_kind_packed_or_not(tmp_path, ending):
    """Text is one document a file, JSON lines and parquet one a line or row, by a field of any name."""
    assert documents(packed(tmp_path / f"a.txt{ending}", b"all of\nit")) == ["all of\nit"]
    assert documents(packed(tmp_path / f"a.jsonl{ending}", lines())) == TEXTS
    assert documents(packed(tmp_path / f"b.ndjson{ending}", lines("body")), "body") == TEXTS
    assert documents(packed(tmp_path / f"a.parquet{ending}", table([*TEXTS, None]))) == [*TEXTS, ""]
    assert kind_of(tmp_path / f"x.jsonl{ending}") == "lines"
    assert can_be_cut(tmp_path / f"x.jsonl{ending}") == (not ending)


@pytest.mark.parametrize("size", [1, 7, 30, 1000])
def test_lines_are_cut_anywhere_and_none_is_lost(tmp_path, size):
    """Every line is in the extent in which it begins, wherever the cuts fall."""
    path = tmp_path / "a.jsonl"
    path.write_bytes(lines())
    (source,) = find_sources([str(path)])
    cuts = [Extent(source, at, min(at + size, source.size_bytes)) for at in range(0, source.size_bytes, size)]
    assert [d.read().decode() for cut in cuts for d in read_documents(cut, "text")] == TEXTS


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        (
            "a.jsonl",
            b'{"text": "x"}\n{"body": "y", "id": 1}\n',
            "the line at byte 14: an object with body, id, but no",
        ),
        ("a.jsonl", b"{\n", "the line at byte 0: no JSON"),
        ("a.jsonl", b"[1]\n", "the line at byte 0: no object, but no text in 'text'"),
        ("a.jsonl", b'{"text": 3}\n', "no text in 'text'; name its field"),
        ("a.txt.gz", b"no gzip", "its .gz stream is damaged"),
        ("a.txt.zst", b"no zstd at all", "its .zst stream is damaged"),
        ("a.parquet", b"no parquet", "as parquet"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path, name, content, words):
    """The file, the place, what was found and what was wanted."""
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError) as caught:
        documents(tmp_path / name)
    assert words in str(caught.value)
    assert str(tmp_path / name) in str(caught.value)


def test_other_columns_are_named(tmp_path):
    """Parquet without the column, or with one that holds no text."""
    (tmp_path / "a.parquet").write_bytes(table(TEXTS, "body"))
    with pytest.raises(DataError, match="has no column 'text', but id, body"):
        documents(tmp_path / "a.parquet")
    with pytest.raises(DataError, match="column 'id' holds no text, but int"):
        documents(tmp_path / "a.parquet", "id")


def test_a_packed_stream_that_ends_early_is_damaged(tmp_path):
    """A download that broke off is no shorter text."""
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(lines() * 50)[:-20])
    with pytest.raises(DataError, match=r"its \.gz stream is damaged"):
        documents(path)
