import pytest

from launcher.logs import READ_BYTES, Tail


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
