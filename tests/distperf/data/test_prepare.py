import subprocess
import sys
from pathlib import Path

import pytest

from distperf.data.manifest import read_manifest
from distperf.data.prepare import main, prepare_sources, prepare_text
from distperf.data.shards import TokenStore
from distperf.data.sources import find_sources
from distperf.data.tokenizer import ByteTokenizer
from distperf.errors import DataError


@pytest.fixture
def text(tmp_path: Path) -> Path:
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "b.txt").write_bytes(b"second\xff")
    (tmp_path / "text" / "a.txt").write_bytes(b"first")
    return tmp_path / "text"


STREAM = [*b"first", 256, *b"second\xff", 256]


@pytest.mark.parametrize("shard_tokens", [1, 4, 7, 100])
def test_documents_follow_each_other_with_their_ends(tmp_path: Path, text: Path, shard_tokens: int):
    """Sorted files, every byte of each, an end after each, however the shards are cut; nothing else is left there."""
    out = tmp_path / "out" / "shards"
    sources = find_sources([f"{text}/*.txt"])
    made = prepare_sources(sources, ByteTokenizer(), out, shard_tokens=shard_tokens)
    store = TokenStore([out])
    assert store.read(0, store.tokens).tolist() == STREAM
    assert read_manifest(out) == made
    assert (made.documents, len(made.shards)) == (2, -(-len(STREAM) // shard_tokens))
    assert [path.name for path in out.parent.iterdir()] == ["shards"]


def test_a_failed_preparation_leaves_nothing(tmp_path: Path, text: Path):
    """A file that grew since it was listed stops it; neither the folder nor a partial one remains."""
    sources = find_sources([f"{text}/*.txt"])
    (text / "b.txt").write_bytes(b"second, longer")
    with pytest.raises(DataError, match=r"b.txt changed while it was read: 7 bytes before, 14 now"):
        prepare_sources(sources, ByteTokenizer(), tmp_path / "out")
    (text / "b.txt").unlink()
    with pytest.raises(DataError, match=r"cannot read text .*b.txt: No such file"):
        prepare_sources(sources, ByteTokenizer(), tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["text"]


def test_a_folder_in_use_is_never_overwritten(tmp_path: Path, text: Path):
    """An empty folder is taken; one with anything in it, a file, or a place that cannot be made is refused."""
    out = tmp_path / "out"
    out.mkdir()
    prepare_text([f"{text}/*"], ByteTokenizer(), out)
    with pytest.raises(DataError, match="out is not empty"):
        prepare_text([f"{text}/*"], ByteTokenizer(), out)
    with pytest.raises(DataError, match=r"cannot write token shards to .*a.txt: Not a directory"):
        prepare_text([f"{text}/*"], ByteTokenizer(), text / "a.txt")
    with pytest.raises(DataError, match="Not a directory"):
        prepare_text([f"{text}/*"], ByteTokenizer(), text / "a.txt" / "out")


def test_progress_reaches_the_end(tmp_path: Path, text: Path):
    """Bytes read only grow, and end at the bytes there are."""
    seen: list[tuple[int, int]] = []
    prepare_text(
        [f"{text}/*"], ByteTokenizer(), tmp_path / "out", lambda done, total: seen.append((done, total))
    )
    assert seen == [(5, 12), (12, 12)]


def test_the_command_makes_shards_and_explains_refusals(
    tmp_path: Path, text: Path, capsys: pytest.CaptureFixture[str]
):
    """Exit code 0 and a summary; then 1 and one line for what the user can mend."""
    command = [
        "--text",
        f"{text}/a*",
        "--text",
        f"{text}/b*",
        "--tokenizer",
        "byte",
        "--out",
        str(tmp_path / "out"),
    ]
    assert main(command) == 0
    assert "14 tokens of 2 documents in 1 shards (uint16, vocabulary 257" in capsys.readouterr().err
    assert main(command) == 1
    assert (
        capsys.readouterr().err
        == f"distperf: {tmp_path}/out is not empty; name a new folder or remove this one\n"
    )


@pytest.mark.slow
def test_the_module_runs_as_a_program(tmp_path: Path):
    """`python -m distperf.data.prepare` ends with its code and no traceback, and needs no torch."""
    command = [
        sys.executable,
        "-X",
        "importtime",
        "-m",
        "distperf.data.prepare",
        "--text",
        "none/*",
        "--out",
        "x",
    ]
    done = subprocess.run(
        command, cwd=tmp_path, env={"PYTHONPATH": str(Path.cwd())}, capture_output=True, text=True
    )
    assert done.returncode == 1
    assert f"no text file matches 'none/*' in {tmp_path}/none, which does not exist" in done.stderr
    assert "Traceback" not in done.stderr
    assert " torch\n" not in done.stderr
