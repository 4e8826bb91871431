import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from distperf.data.manifest import MANIFEST, dtype_for, read_manifest, verify_content, write_manifest
from distperf.data.prepare import prepare_text
from distperf.data.tokenizer import ByteTokenizer
from distperf.errors import DataError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "a.txt").write_bytes(b"hello")
    prepare_text([f"{tmp_path}/*.txt"], ByteTokenizer(), tmp_path / "shards")
    return tmp_path / "shards"


@pytest.mark.parametrize(("vocab", "dtype"), [(257, "uint16"), (65536, "uint16"), (65537, "uint32")])
def test_i01_dtype_follows_the_vocabulary(vocab: int, dtype: str):
    """The largest id that a vocabulary allows fits its dtype; one more and the dtype is wider."""
    assert dtype_for(vocab) == dtype
    assert np.iinfo(dtype).max >= vocab - 1


def test_reading_needs_neither_torch_nor_numpy():
    """Tools read a manifest with the standard library alone."""
    code = "import sys, distperf.data.manifest; sys.exit(bool({'torch', 'numpy'} & set(sys.modules)))"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_manifest_comes_back_as_written(folder: Path):
    """Reading and writing again changes nothing; content that matches its hash passes."""
    text = (folder / MANIFEST).read_text()
    manifest = read_manifest(folder)
    write_manifest(folder, manifest)
    assert (folder / MANIFEST).read_text() == text
    assert (manifest.tokens, manifest.documents, manifest.max_id, manifest.eod) == (6, 1, 256, 256)
    verify_content(folder, manifest)


def test_a_short_shard_is_refused_with_wanted_and_found_bytes(folder: Path):
    """Every wrong length names the file and both numbers; a missing file is told apart."""
    shard = folder / "shard-00000.bin"
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(DataError, match=r"shard-00000.bin: 12 bytes wanted, 11 found"):
        read_manifest(folder)
    shard.unlink()
    with pytest.raises(DataError, match=r"shard-00000.bin \(12 bytes wanted\): No such file"):
        read_manifest(folder)


def test_a_changed_byte_is_found(folder: Path):
    """Equal length and other content: found by hash."""
    shard = folder / "shard-00000.bin"
    shard.write_bytes(b"\x00" + shard.read_bytes()[1:])
    with pytest.raises(DataError, match="content is not what"):
        verify_content(folder, read_manifest(folder))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": 2}, "schema 2"),
        ({"dtype": "int8"}, "dtype int8"),
        ({"vocab": 200}, "id 256 does not fit vocabulary 200"),
        ({"tokens": 7}, "7 tokens in all, but its shards hold 6"),
    ],
)
def test_a_manifest_that_contradicts_itself_is_refused(folder: Path, change: dict, message: str):
    """Each field that others depend on is checked against them."""
    write_manifest(folder, dataclasses.replace(read_manifest(folder), **change))
    with pytest.raises(DataError, match=message):
        read_manifest(folder)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "7", '{"schema": 1}', "\x00"])
def test_a_damaged_manifest_is_a_data_error(folder: Path, text: str):
    """No content of manifest.json ends in a traceback."""
    (folder / MANIFEST).write_text(text)
    with pytest.raises(DataError, match=r"manifest.json is damaged"):
        read_manifest(folder)


def test_a_folder_without_manifest_says_how_to_make_one(tmp_path: Path):
    """No manifest means not complete, whatever else is there."""
    with pytest.raises(DataError, match="distperf data prepare"):
        read_manifest(tmp_path)


def test_ids_above_the_dtype_are_refused_at_load(folder: Path):
    """A max_id that the stated dtype cannot hold is refused, however large the vocabulary is said to be."""
    document = json.loads((folder / MANIFEST).read_text())
    document["vocab"], document["shards"][0]["max_id"] = 200000, 70000
    (folder / MANIFEST).write_text(json.dumps(document))
    with pytest.raises(DataError, match="id 70000 does not fit"):
        read_manifest(folder)
