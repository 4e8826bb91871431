import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.logs import MAX_LINE_BYTES, Lines, prefix, printable, printable_lines


def lines(*pieces, rest=True):
    cutter = Lines()
    found = [line for piece in pieces for line in cutter.feed(piece)]
    return found + (list(cutter.rest()) if rest else [])


def test_carriage_returns():
    """L01: of a progress bar the last state is shown; the error after it is a line of its own, at once."""
    bar = b"".join(b"\r%3d%%" % n for n in range(101))
    assert lines(bar, b"\nerror: no\n", rest=False) == ["100%", "error: no"]


def test_windows_line_ends():
    """A return before the newline is part of the line's end."""
    assert lines(b"a\r\nb\r\n", rest=False) == ["a", "b"]


def test_bad_bytes_do_not_stop_the_view():
    """L02: undecodable bytes are marked, and the 100 good lines after them appear."""
    good = [f"line {n}" for n in range(100)]
    shown = lines(b"\xff\xe2 caf\xe9\n" + "\n".join(good).encode() + b"\n")
    assert shown == ["\ufffd\ufffd caf\ufffd", *good]


@pytest.mark.parametrize("text", ["[Warning] x", "[/bold]", "make[2]: y", "[link=z]"])
def test_brackets_are_text(text):
    """L04: nothing in a line is markup."""
    assert lines(text.encode() + b"\n") == [text]


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        (b"\x1b[1;31mred\x1b[0m", "red"),
        (b"\x1b[2J\x1b[Hx", "x"),
        (b"\x1b]0;title\x07x", "x"),
        (b"\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        (b"a\x00b\x07c\x7f", "abc"),
        ("a\u009b31mb".encode(), "a31mb"),
        (b"a\tb", "a       b"),
        (b"x\x1b", "x"),
    ],
)
def test_escapes_are_removed(raw, shown):
    """Nothing that moves a cursor, rings a bell or renames a window reaches the terminal."""
    assert printable(raw) == shown


def test_long_lines_are_cut():
    """A line of 1 MB is shown in part, its length is said, and feeding it does not collect it all first."""
    cutter = Lines()
    shown = [line for _ in range(16) for line in cutter.feed(b"x" * 65536)]
    assert shown
    assert all(len(line) < MAX_LINE_BYTES + 100 for line in shown)
    assert printable(b"y" * 1_000_000).endswith("... (1000000 characters; all of them are in the rank's log)")


@pytest.mark.parametrize("start", [b"", b"\r", b"50%\r"])
def test_memory_is_bounded(start):
    """A rank that never ends its line does not fill the controller's memory, bar or not."""
    cutter = Lines()
    list(cutter.feed(start))
    for _ in range(64):
        list(cutter.feed(b"x" * 65536))
        assert len(cutter._partial) <= 2 * 65536


def test_a_line_in_pieces_is_whole():
    """Lines come whole, wherever the stream was cut, within a character too."""
    data = "a日本b\n".encode()
    for cut in range(len(data)):
        assert lines(data[:cut], data[cut:], rest=False) == ["a日本b"]


@given(
    st.lists(
        st.binary(max_size=60) | st.sampled_from([b"\x1b[", b"\x1b]", b"\r", b"\n", b"\xc2\x9b"]), max_size=12
    )
)
def test_any_bytes(pieces):
    """Whatever a rank writes, nothing raises and no control character comes out."""
    for line in lines(*pieces):
        assert not [c for c in line if unicodedata.category(c) == "Cc"]


@given(st.text(max_size=60))
def test_any_text_is_printable_by_lines(text):
    """A message or traceback from a rank is safe, line by line."""
    for line in printable_lines(text):
        assert not [c for c in line if unicodedata.category(c) == "Cc"]


def test_prefix():
    """Host and rank, in columns."""
    assert prefix("a", 3, 5, 2) == "a      3 | "
