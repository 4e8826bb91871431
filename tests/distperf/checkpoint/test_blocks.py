"""Files in blocks: any part is read back as it was written, and no byte changes unseen."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distperf.checkpoint.blocks import CheckedReader, FileSum, hash_of, read_checked
from distperf.checkpoint.writing import HashingWriter
from distperf.errors import CheckpointCorrupt

BLOCK = 16


def write(path, parts: list[bytes]) -> FileSum:
    path.unlink(missing_ok=True)
    with HashingWriter(path, BLOCK) as file:
        for part in parts:
            assert file.write(part) == len(part)
        return file.finish()


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tmp_path_factory.mktemp("blocks") / "file"


@given(st.lists(st.binary(max_size=40), max_size=6), st.data())
def test_any_part_reads_back_whatever_pieces_it_was_written_in(path, parts, data):
    """Hashes are those of the blocks of the whole; a part that begins and ends anywhere comes back."""
    whole = b"".join(parts)
    sums = write(path, parts)
    blocks = [whole[at:][:BLOCK] for at in range(0, len(whole), BLOCK)]
    assert sums == FileSum(len(whole), tuple(map(hash_of, blocks)))
    with CheckedReader(path, sums, BLOCK) as reader:
        for _ in range(3):
            start = data.draw(st.integers(0, len(whole)))
            target = bytearray(data.draw(st.integers(0, len(whole) - start)))
            reader.read_into(start, memoryview(target))
            assert target == whole[start:][: len(target)]
        assert list(reader.damaged()) == []


@given(st.integers(0, 49), st.integers(0, 7), st.integers(0, 49))
def test_a_flipped_bit_is_seen_by_whoever_touches_its_block_and_by_nobody_else(path, at, bit, start):
    """Each block is checked as a whole, and by itself."""
    sums = write(path, [os.urandom(50)])
    text = bytearray(path.read_bytes())
    text[at] ^= 1 << bit
    path.write_bytes(text)
    with CheckedReader(path, sums, BLOCK) as reader:
        (found,) = reader.damaged()
        assert found.span[0] <= at < found.span[1]
        target = memoryview(bytearray(1))
        if start // BLOCK != at // BLOCK:
            reader.read_into(start, target)
            assert target[0] == text[start]
        else:
            for _ in range(2):  # a block that failed is not remembered as read
                with pytest.raises(CheckpointCorrupt, match="are not what was written"):
                    reader.read_into(start, target)


@pytest.mark.parametrize("length", [0, 15, 16, 49])
def test_a_file_that_was_cut_is_seen(path, length):
    """Anywhere, at the end of a block too."""
    sums = write(path, [bytes(50)])
    os.truncate(path, length)
    with pytest.raises(CheckpointCorrupt, match="are not what was written"):
        read_checked(path, sums, BLOCK)


def test_what_is_not_there_cannot_be_read(path):
    """Beyond the end, by a wrong index."""
    sums = write(path, [bytes(50)])
    with CheckedReader(path, sums, BLOCK) as reader, pytest.raises(CheckpointCorrupt, match="has no byte 50"):
        reader.read_into(48, memoryview(bytearray(4)))


@pytest.mark.parametrize("folder", ["/dev/shm", None])
@pytest.mark.parametrize("block", [4096, 1000])
def test_a_long_file_is_what_was_written(tmp_path, folder, block):
    """Past the page cache and through it, by threads: blocks come to their places, whatever is under way."""
    with tempfile.TemporaryDirectory(dir=folder or tmp_path) as made:
        path, whole = Path(made) / "file", os.urandom(100_000)
        with HashingWriter(path, block) as file:
            for at in range(0, len(whole), 7_777):
                file.write(whole[at:][:7_777])
            sums = file.finish()
        assert path.read_bytes() == whole
        assert read_checked(path, sums, block) == whole


def test_a_failed_write_is_told(tmp_path):
    """Of a thread's writes too: the file may not be longer than the limit."""
    code = (
        "import resource, sys; from pathlib import Path; from distperf.checkpoint.writing import HashingWriter\n"
        "import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (3 * 4096, 3 * 4096))\n"
        "with HashingWriter(Path(sys.argv[1]), 4096) as file:\n"
        "    try:\n"
        "        file.write(bytes(20 * 4096)); file.finish()\n"
        "    except OSError as error: print(error.strerror)"
    )
    run = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "file"], capture_output=True, text=True, check=True
    )
    assert run.stdout == "File too large\n"


def test_a_file_is_never_overwritten(path):
    """A name that is there already is an error of the caller's, or another writer at work."""
    write(path, [b"x"])
    with pytest.raises(FileExistsError):
        HashingWriter(path)
