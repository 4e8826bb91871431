"""What a view consists of: lines of spans, with a tone instead of a colour. Pure; knows nothing of Textual.

Tones: text | dim | title | good | warn | bad | accent | mark (where the cursor is) | heat-0 ... heat-7.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Span:
    """A piece of a line. target: what a click on it opens ("rank 17"), if anything."""

    text: str
    tone: str = "text"
    target: str = ""


Line = tuple[Span, ...]


@dataclass(frozen=True)
class Look:
    """Room and means: columns and rows that the view has, and whether only ASCII may be used."""

    width: int
    height: int
    ascii: bool = False

    def pick(self, best: str, plain: str) -> str:
        """The better sign, or the one that every terminal has."""
        return plain if self.ascii else best


def line(*pieces: str | Span) -> Line:
    """A line of spans; a bare string is a span in the tone of text."""
    return tuple(piece if isinstance(piece, Span) else Span(piece) for piece in pieces)


def width(spans: Iterable[Span]) -> int:
    """Columns that spans take."""
    return sum(cells(span.text) for span in spans)


def cells(text: str) -> int:
    """Columns that a safe text takes: East Asian wide characters take two."""
    if text.isascii():
        return len(text)
    return sum(2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text)


def safe(text: str, *, ascii: bool = False) -> str:
    """One line that cannot move anything on the screen: nothing invisible, combining, bidirectional or private."""
    if text.isprintable() and text.isascii():
        return text
    return "".join(map(_ascii if ascii else _visible, text.expandtabs()))


def _ascii(char: str) -> str:
    return char if " " <= char <= "~" else "?"


def _visible(char: str) -> str:
    if " " <= char <= "~":
        return char
    kind = unicodedata.category(char)
    if kind in ("Mn", "Me"):
        return ""
    return char if char.isprintable() and kind != "Co" else "\N{REPLACEMENT CHARACTER}"


def cut(text: str, room: int, *, ascii: bool = False) -> str:
    """At most `room` columns; an ellipsis tells that there is more."""
    if cells(text) <= room:
        return text
    dots = "..." if ascii else "\N{HORIZONTAL ELLIPSIS}"
    while text and cells(text) + cells(dots) > room:
        text = text[: max(0, min(len(text) - 1, room))]
    return text + dots if room >= cells(dots) else text[:room]


def fit(spans: Sequence[Span], room: int) -> Line:
    """The spans that `room` columns hold, the last one cut."""
    found: list[Span] = []
    for span in spans:
        here = cells(span.text)
        if here > room:
            rest = span.text[:room]
            while cells(rest) > room:
                rest = rest[:-1]
            found.append(replace(span, text=rest))
            break
        found.append(span)
        room -= here
    return tuple(found)


def pad(spans: Sequence[Span], room: int) -> Line:
    """Exactly `room` columns: cut, or filled with blanks."""
    kept = fit(spans, room)
    return (*kept, Span(" " * (room - width(kept))))


def beside(left: Sequence[Line], right: Sequence[Line], room: int, gap: int = 2) -> list[Line]:
    """Two blocks next to each other; the left one gets `room` columns."""
    rows = max(len(left), len(right))
    empty: Line = ()
    filled = [*left, *[empty] * (rows - len(left))]
    other = [*right, *[empty] * (rows - len(right))]
    return [(*pad(a, room), Span(" " * gap), *b) for a, b in zip(filled, other, strict=True)]


def rule(title: str, look: Look) -> Line:
    """A heading with a line to the right edge."""
    bar = look.pick("\N{BOX DRAWINGS LIGHT HORIZONTAL}", "-")
    rest = max(0, look.width - cells(title) - 4)
    return line(Span(bar * 2 + " ", "dim"), Span(title, "title"), Span(" " + bar * rest, "dim"))


def gauge(share: float, room: int, look: Look, tone: str = "accent") -> tuple[Span, Span]:
    """A bar filled to a share of its room."""
    done = round(min(1.0, max(0.0, share)) * room)
    full, rest = look.pick("\N{FULL BLOCK}", "#"), look.pick("\N{LIGHT SHADE}", ".")
    return Span(full * done, tone), Span(rest * (room - done), "dim")


def wrap(text: str, room: int) -> list[str]:
    """A line in pieces of at most `room` columns, cut between words where there are any."""
    pieces: list[str] = []
    while cells(text) > room > 0:
        end = room
        while cells(text[:end]) > room:
            end -= 1
        blank = text.rfind(" ", end // 2, end + 1)
        stop = blank if blank > 0 else end
        pieces.append(text[:stop])
        text = text[stop:].lstrip(" ") if blank > 0 else text[stop:]
    return [*pieces, text]
