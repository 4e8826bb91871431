"""Small windows over the dashboard: a question, a line of text, the help."""

from __future__ import annotations

from collections.abc import Callable

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal, Vertical
from textual.screen import ModalScreen
from textual.widgets import Button, Input, Static


class Question(ModalScreen[bool]):
    """Yes or no; no is what Enter and Escape mean."""

    BINDINGS = [Binding("y", "answer(True)", "yes"), Binding("n,escape,q", "answer(False)", "no")]

    def __init__(self, text: str, yes: str) -> None:
        super().__init__()
        self._text, self._yes = text, yes

    def compose(self) -> ComposeResult:
        """The question over two buttons."""
        with Vertical(id="window"):
            yield Static(Text(self._text))
            with Horizontal():
                yield Button("No (n)", id="no")
                yield Button(f"{self._yes} (y)", id="yes")

    def on_mount(self) -> None:
        """A stray Enter does no harm."""
        self.query_one("#no").focus()

    def on_button_pressed(self, event: Button.Pressed) -> None:
        """By mouse, or Enter."""
        self.dismiss(event.button.id == "yes")

    def action_answer(self, answer: bool) -> None:
        """By key."""
        self.dismiss(answer)


class Prompt(ModalScreen[str | None]):
    """A line of text; None when it is left. check: why a text will not do, or None."""

    BINDINGS = [Binding("escape", "leave", "leave")]

    def __init__(self, title: str, value: str, check: Callable[[str], str | None]) -> None:
        super().__init__()
        self._title, self._value, self._check = title, value, check

    def compose(self) -> ComposeResult:
        """The title over a field."""
        with Vertical(id="window"):
            yield Static(Text(self._title))
            yield Input(self._value)
            yield Static("", id="problem")

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Take it, or say why not."""
        problem = self._check(event.value)
        if problem is None:
            self.dismiss(event.value)
        else:
            self.query_one("#problem", Static).update(Text(problem))

    def action_leave(self) -> None:
        """As if nothing had been asked."""
        self.dismiss(None)
