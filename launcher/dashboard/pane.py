"""A widget that paints lines: scrolls, cuts, and says what was clicked. Interprets nothing in them."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from launcher.dashboard.lines import Line, cells, width


class Pane(ScrollView, inherit_bindings=False):
    """Lines on the screen. `styles_of` gives a style for each tone."""

    class Picked(Message):
        """A span with a target was clicked."""

        def __init__(self, target: str) -> None:
            super().__init__()
            self.target = target

    def __init__(self, name: str) -> None:
        super().__init__(id=name)
        self.can_focus = False  # keys are the app's (launcher.dashboard.keys)
        self.lines: Sequence[Line] = ()
        self.styles_of: Mapping[str, Style] = {}

    def show(self, lines: Sequence[Line], styles_of: Mapping[str, Style]) -> None:
        """Paint other lines; nothing is done where they are the same."""
        if lines == self.lines and styles_of is self.styles_of:
            return
        self.lines, self.styles_of = lines, styles_of
        widest = max((width(spans) for spans in lines), default=0)
        self.virtual_size = Size(widest, len(lines))
        self.refresh()

    def render_line(self, y: int) -> Strip:
        """One row of the screen."""
        left, top = self.scroll_offset
        row, room, base = top + y, self.size.width, self.rich_style
        if row >= len(self.lines):
            return Strip.blank(room, base)
        plain = Style()
        segments = [
            Segment("".join(span.text for span in spans), base + self.styles_of.get(tone, plain))
            for tone, spans in itertools.groupby(self.lines[row], key=lambda span: span.tone)
        ]
        return Strip(segments).crop_extend(left, left + room, base)

    @property
    def at_end(self) -> bool:
        """The last line is on the screen."""
        return self.scroll_offset.y >= self.max_scroll_y

    def scroll_by(self, key: str) -> bool:
        """Scroll as a key asks; False where it is none of those."""
        page = max(1, self.size.height - 1)
        ways = {"up": (0, -1), "down": (0, 1), "left": (-20, 0), "right": (20, 0), "pageup": (0, -page),
                "pagedown": (0, page), "home": (0, -len(self.lines)), "end": (0, len(self.lines))}  # fmt: skip
        if key not in ways:
            return False
        x, y = ways[key]
        self.scroll_relative(x=x or None, y=y or None, animate=False)
        return True

    def on_click(self, event: events.Click) -> None:
        """Find the span under the mouse."""
        target = self.target_at(event.x, event.y)
        if target:
            event.stop()
            self.post_message(self.Picked(target))

    def target_at(self, x: int, y: int) -> str:
        """What a click there opens."""
        left, top = self.scroll_offset
        row, column = top + y, left + x
        for span in self.lines[row] if 0 <= row < len(self.lines) else ():
            column -= cells(span.text)
            if column < 0:
                return span.target
        return ""
