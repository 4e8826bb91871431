import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.dashboard.lines import Look, Span, beside, cells, cut, fit, gauge, pad, rule, safe, width, wrap

HOSTILE = [
    "\x1b[2J",
    "a\rb",
    "\u202egnp.exe",
    "e\u0301\u0301\u0301",
    "\x00\x07",
    "[/bold][link=x]",
    "\ue000",
    "a\tb",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_safe_keeps_the_cursor_where_it_is(text):
    """Nothing that moves, hides, reorders or combines is left; brackets are just brackets."""
    for plain in (False, True):
        shown = safe(text, ascii=plain)
        assert not any(unicodedata.category(char) in ("Cc", "Cf", "Mn", "Me", "Co", "Cs") for char in shown)
        assert shown.isascii() or not plain
    assert safe("[/bold] make[2]:") == "[/bold] make[2]:"


@settings(deadline=None)
@given(st.text(), st.integers(0, 40))
def test_cut_and_wrap_fit(text, room):
    """Whatever comes, it takes no more columns than there are, and wrapping loses nothing but blanks."""
    text = safe(text)
    assert cells(cut(text, room)) <= room
    pieces = wrap(text, max(2, room))
    assert all(cells(piece) <= max(2, room) for piece in pieces)
    assert "".join(pieces).replace(" ", "") == text.replace(" ", "")


@settings(deadline=None)
@given(st.lists(st.text(alphabet="aé字 "), max_size=5), st.integers(0, 30))
def test_pad_is_exact(texts, room):
    """A padded line takes exactly its columns, wide characters too."""
    spans = tuple(Span(text) for text in texts)
    assert width(fit(spans, room)) <= room
    assert width(pad(spans, room)) == room


def test_blocks():
    """Gauge, rule and two blocks beside each other keep to their room, in ASCII too."""
    look = Look(30, 5, ascii=True)
    assert "".join(span.text for span in gauge(0.5, 10, look)) == "#####....."
    assert "".join(span.text for span in gauge(7.0, 4, look)) == "####"
    assert width(rule("loss", look)) <= 30
    lines = beside([(Span("a"),)], [(Span("b"),), (Span("c"),)], 4)
    assert ["".join(span.text for span in spans) for spans in lines] == ["a     b", "      c"]
