import pytest

from launcher import words


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0.0 s"), (9.94, "9.9 s"), (10, "10 s"), (59.4, "59 s"), (59.6, "1 min 0 s"), (185, "3 min 5 s"),
     (3599.7, "1 h 00 min"), (7620, "2 h 07 min")],
)  # fmt: skip
def test_seconds(value, text):
    """Seconds in the two units that matter."""
    assert words.seconds(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (3.4 * 2**20, "3.4 MiB"), (2**50, "1024.0 TiB")],
)
def test_size(value, text):
    """Bytes in binary units."""
    assert words.size(value) == text


@pytest.mark.parametrize(("count", "text"), [(0, "0 ranks"), (1, "1 rank"), (2000, "2,000 ranks")])
def test_plural(count, text):
    """One rank, more ranks."""
    assert words.plural(count, "rank") == text
