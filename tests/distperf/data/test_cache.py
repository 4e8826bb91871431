import os
import subprocess
import sys
from pathlib import Path

import pytest

from distperf.data.cache import cache_root, cached_text
from distperf.data.manifest import read_manifest
from distperf.data.tokenizer import ByteTokenizer
from distperf.errors import DataError


@pytest.fixture
def glob(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "a.txt").write_text("some text")
    monkeypatch.setenv("DISTPERF_CACHE", str(tmp_path / "cache"))
    return f"{tmp_path}/*.txt"


def test_the_root_is_named_by_the_environment(monkeypatch: pytest.MonkeyPatch):
    """Our own variable, then XDG's, then the home folder; empty is not set."""
    monkeypatch.setenv("HOME", "/h")
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    monkeypatch.setenv("DISTPERF_CACHE", "/d")
    assert cache_root() == Path("/d")
    monkeypatch.setenv("DISTPERF_CACHE", "")
    assert cache_root() == Path("/x/distperf")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_root() == Path("/h/.cache/distperf")


def test_text_is_tokenised_once(glob: str, tmp_path: Path):
    """The second time the shards are found, untouched; changed text gets a folder of its own."""
    folder = cached_text([glob], ByteTokenizer())
    made = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert cached_text([glob], ByteTokenizer()) == folder
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == made
    assert read_manifest(folder).fingerprint == folder.name
    (tmp_path / "a.txt").write_text("other text")
    assert cached_text([glob], ByteTokenizer()) != folder


def test_a_cache_that_cannot_be_written_names_the_way_out(
    glob: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A home that is read-only (here: under a file) stops with the variable to set; a full cache needs no writing."""
    monkeypatch.setenv("DISTPERF_CACHE", str(tmp_path / "a.txt" / "cache"))
    with pytest.raises(DataError, match=r"cannot keep token shards in .* Set DISTPERF_CACHE to a folder"):
        cached_text([glob], ByteTokenizer())


@pytest.mark.slow
def test_processes_at_once_share_one_result(glob: str, tmp_path: Path):
    """Four processes that start together agree on one complete folder and leave no partial one."""
    code = (
        "import sys; from distperf.data.cache import cached_text; from distperf.data.tokenizer import load_tokenizer\n"
        "print(cached_text([sys.argv[1]], load_tokenizer('byte')))"
    )
    (tmp_path / "a.txt").write_bytes(b"0123456789abcdef" * 2**18)
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code, glob], stdout=subprocess.PIPE, text=True, env=os.environ
        )
        for _ in range(4)
    ]
    folders = {process.communicate()[0].strip() for process in processes}
    assert [process.returncode for process in processes] == [0] * 4
    assert len(folders) == 1
    folder = Path(folders.pop())
    assert read_manifest(folder).tokens == 2**22 + 1
    assert sorted(path.name for path in folder.parent.iterdir()) == [folder.name, f"{folder.name}.lock"]
