import re
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.logfiles import MISSED, READ_BYTES, LogFiles, Tail, older
from launcher.rundir import RunDir


def read(tail):
    return b"".join(iter(tail.new, b""))


def test_what_comes_is_read_once(tmp_path):
    """Pieces add up to the file, which may be missing at first, and is longer than one read."""
    path = tmp_path / "log"
    tail = Tail(path)
    assert tail.new() == b""
    path.write_bytes(b"x" * (READ_BYTES + 5))
    assert read(tail) == path.read_bytes()
    with path.open("ab") as file:
        file.write(b"more\nwithout end")
    assert read(tail) == b"more\nwithout end"
    assert tail.new() == b""


@pytest.mark.parametrize(
    ("text", "lines", "left"),
    [
        (b"", 2, b""),
        (b"a\n", 2, b"a\n"),
        (b"a\nb\nc\n", 2, b"b\nc\n"),
        (b"a\nb\nc\n", 3, b"a\nb\nc\n"),
        (b"a\nb\nc", 1, b"b\nc"),
        (b"x" * READ_BYTES + b"\nb\n", 5, b"b\n"),
        (b"x" * (READ_BYTES + 9), 1, b"x" * READ_BYTES),
    ],
)
def test_skip(tmp_path, text, lines, left):
    """The last whole lines are left, and one still being written; lines are not sought for further than 64 KiB."""
    path = tmp_path / "log"
    path.write_bytes(text)
    tail = Tail(path)
    tail.skip(lines)
    assert read(tail) == left


def test_skip_before_there_is_a_file(tmp_path):
    """Then everything that comes is new."""
    tail = Tail(tmp_path / "log")
    tail.skip(1)
    (tmp_path / "log").write_bytes(b"a\nb\n")
    assert read(tail) == b"a\nb\n"


def test_files_by_offset(tmp_path):
    """What is sent twice lands once; a rank that says nothing has an empty log; others than the group read neither."""
    run = RunDir(tmp_path)
    files = LogFiles(run, 2, 2)
    data = bytes(range(256)) * 4
    for start in (0, 256, 0, 128, 512, 768, 256):
        files.write(1, start, data[start : start + 256])
    files.write(1, 1024, b"end")
    files.write(1, 1000, data[1000:])
    assert run.log(2, 1).read_bytes() == data + b"end"
    assert run.log(2, 0).read_bytes() == b""
    assert run.log(2, 1).stat().st_mode & 0o007 == 0


@settings(deadline=None)  # it waits for a disk
@given(st.binary(max_size=300), st.lists(st.tuples(st.integers(0, 299), st.integers(1, 80)), max_size=8))
def test_any_resending_is_harmless(data, again):
    """Sending any pieces again changes nothing."""
    with tempfile.TemporaryDirectory() as folder:
        run = RunDir(Path(folder))
        files = LogFiles(run, 1, 1)
        files.write(0, 0, data)
        for start, size in again:
            files.write(0, start, data[start : start + size]) if start < len(data) else None
        assert run.log(1, 0).read_bytes() == data


@given(
    st.lists(st.integers(1, 50), min_size=1, max_size=60), st.lists(st.booleans(), min_size=1, max_size=60)
)
def test_a_limited_log_is_a_tail_and_is_read_in_order(sizes, looks):
    """Both parts together are the end of what was written, within the limit, half of it at least; a reader that looks
    often enough, whenever it does, misses nothing, and one that comes late reads the parts in order.
    """
    written = b"".join(b"%05d\n" % n for n in range(1000))[: sum(sizes)]
    with tempfile.TemporaryDirectory() as folder:
        run = RunDir(Path(folder))
        files, tail, seen, at = LogFiles(run, 1, 1, limit_bytes=200), Tail(run.log(1, 0)), b"", 0
        for nth, size in enumerate(sizes):
            files.write(0, at, written[at : at + size])
            at += size
            if looks[nth % len(looks)] or nth % 3 == 0:
                seen += read(tail)
        parts = [path.read_bytes() for path in (older(run.log(1, 0)), run.log(1, 0)) if path.exists()]
        kept = b"".join(parts)
        assert written.endswith(kept)
        assert min(len(written), 51) <= len(kept) <= 200
        assert seen + read(tail) == written or MISSED in seen
        assert read(Tail(run.log(1, 0))) == kept
        assert older(run.log(1, 0)).exists() == (len(parts) == 2)


def test_a_reader_that_was_too_slow_is_told(tmp_path):
    """What it did not see any more is gone, and it goes on with what there is."""
    files, tail = LogFiles(RunDir(tmp_path), 1, 1, limit_bytes=20), Tail(RunDir(tmp_path).log(1, 0))
    files.write(0, 0, b"a" * 10)
    assert read(tail) == b"a" * 10
    for at in (10, 20, 30):
        files.write(0, at, b"%d" % (at // 10) * 10)
    assert read(tail) == MISSED + b"2" * 10 + b"3" * 10


def test_what_a_node_let_go_is_marked(tmp_path):
    """A jump of the offset becomes a line that says how much is missing."""
    run = RunDir(tmp_path)
    files = LogFiles(run, 1, 1, limit_bytes=1 << 20)
    files.write(0, 0, b"abc")
    files.write(0, 5003, b"def")
    files.write(0, 5000, b"xyzdefghi")
    text = run.log(1, 0).read_bytes().decode()
    assert re.fullmatch(r"abc\n\[distperf: 5,000 bytes are missing here: .*\]\ndefghi", text)
