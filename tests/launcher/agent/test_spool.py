import json
import os

import pytest

from launcher import protocol
from launcher.agent import link
from launcher.agent.spool import CHUNK_BYTES, TAIL_LINES, Spool


@pytest.fixture
def spool(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    spool = Spool("run")
    yield spool
    spool.remove()
    assert os.listdir(tmp_path) == []


@pytest.fixture
def log(spool):
    log = spool.open(1, 3)
    yield log
    log.close()


def test_private(spool):
    """Rank output is its owner's alone."""
    assert os.stat(spool.folder).st_mode & 0o077 == 0


def test_chunks_by_offset(log):
    """Every byte once, each chunk from where the last one ended, nothing when there is nothing new."""
    assert log.next_chunk() is None
    os.write(log.write_fd, b"abc")
    assert log.next_chunk() == (0, b"abc")
    assert log.next_chunk() is None
    os.write(log.write_fd, b"x" * (CHUNK_BYTES + 5))
    assert [(offset, len(data)) for offset, data in (log.next_chunk(), log.next_chunk())] == [
        (3, CHUNK_BYTES),
        (3 + CHUNK_BYTES, 5),
    ]


def test_tail(log):
    """The last lines whole, of any bytes; a progress bar is one of them, not all."""
    assert log.tail() == ""
    os.write(log.write_fd, b"".join(b"line %d\n" % n for n in range(5000)))
    assert log.tail().split("\n") == [f"line {n}" for n in range(5000 - TAIL_LINES, 5000)]
    os.write(log.write_fd, b"".join(b"\r%d%%" % n for n in range(100)) + b"\n\xffend")
    assert log.tail().split("\n")[-3:-1] == ["line 4999", "".join(f"\r{n}%" for n in range(100))]
    assert log.tail().endswith("\n\ufffdend")


@pytest.mark.parametrize("content", [None, "", "[]", "{}", '{"message": null}', "[" * 100_000])
def test_no_error_file(log, content):
    """None, or one that makes no sense: no error record."""
    if content is not None:
        with open(log.error_file, "w") as file:
            file.write(content)
    found = log.error()
    assert found is None or found["kind"] == "error"


def test_error_file(log):
    """torchelastic's format gives type, message and traceback."""
    with open(log.error_file, "w") as file:
        json.dump({"message": {"message": "KeyError: 'a: b'", "extraInfo": {"py_callstack": "T"}}}, file)
    assert log.error() == {"kind": "error", "type": "KeyError", "message": "'a: b'", "traceback": "T"}


def test_tail_holds_a_long_traceback(log):
    """L07: sixty frames at the end are not cut to the last lines; what stands before them is."""
    frames = [f'  File "x.py", line {n}, in f' for n in range(60)]
    told = ["Traceback (most recent call last):", *frames, "ValueError: no"]
    os.write(log.write_fd, "\n".join(["before"] * 50 + told).encode() + b"\n")
    assert log.tail().split("\n") == told


def test_a_limited_log_keeps_its_end(spool):
    """Disk space stays within the limit, offsets are those of all that was written, and so are the bytes."""
    limit, piece = 1 << 20, 64 << 10
    log = spool.open(1, 0, limit)
    written = b""
    for n in range(64):
        written += b"%08d" % n * (piece // 8)
        os.write(log.write_fd, written[-piece:])
        log.trim()
        assert os.stat(log.path).st_blocks * 512 <= limit + piece
    offset, data = log.next_chunk()
    assert len(written) - limit <= offset <= len(written) - limit // 2
    while (chunk := log.next_chunk()) is not None:
        assert chunk[0] == offset + len(data)
        data += chunk[1]
    assert data == written[offset:]
    assert log.unsent() == 0
    log.rewind(0)
    assert log.next_chunk()[0] == offset
    log.close()


def test_what_a_dead_agent_left_begins_after_the_hole(spool):
    """The relay that finds no agent sends what is there, by its offset, and no zeros."""
    log = spool.open(1, 0, 1 << 20)
    written = b"%07d\n" * (1 << 18) % tuple(range(1 << 18))
    os.write(log.write_fd, written)
    log.trim()
    frames = link.remains(protocol.Relay("run", "no-such-token", 1, {"0": 5}))
    pieces = list(protocol.FrameReader().feed(b"".join(frames)))
    assert pieces[0].offset == len(written) - (1 << 19)
    assert b"".join(piece.data for piece in pieces) == written[pieces[0].offset :]


def test_a_disk_without_holes_is_told_once(spool):
    """The log is whole then."""
    log = spool.open(1, 0, 4096)
    os.dup2(os.open(os.devnull, os.O_WRONLY), log.write_fd)
    with open(log.path, "ab") as file:
        file.write(b"x" * 10_000)
    with pytest.raises(OSError, match=r"No such device|not supported|Invalid"):
        log.trim()
    log.trim()
    assert log.next_chunk() == (0, b"x" * 10_000)
    log.close()
