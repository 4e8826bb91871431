"""Tones to colours: the theme's own, so that dark and light both read well; without colour, bold and reverse remain."""

from __future__ import annotations

from collections.abc import Mapping

from rich.style import Style

# Blue over yellow to red: told apart by those who do not tell red from green, and by brightness alone.
_HEAT_DARK = ("#3b6fb5", "#4f8fc0", "#76aebb", "#a8c69f", "#dcd07a", "#efb04e", "#ee8037", "#e5432f")
_HEAT_LIGHT = ("#7aa6d8", "#5b93c9", "#4f8f96", "#6f9a4f", "#b39a1d", "#c97d12", "#cf5a1c", "#b71c1c")

NAMED = ("text", "dim", "title", "good", "warn", "bad", "accent", "mark")


def styles(theme: Mapping[str, str], *, dark: bool, color: bool) -> dict[str, Style]:
    """A style for each tone."""
    if not color:
        plain = dict.fromkeys(NAMED, Style())
        plain |= {f"heat-{level}": Style(bold=level > 4) for level in range(8)}
        return plain | {
            "title": Style(bold=True), "bad": Style(bold=True), "warn": Style(bold=True), "mark": Style(reverse=True),
        }  # fmt: skip
    heat = _HEAT_DARK if dark else _HEAT_LIGHT
    named = {
        "text": Style(color=theme["foreground"]),
        "dim": Style(color="#8a94a0" if dark else "#616b76"),
        "title": Style(color=theme["foreground"], bold=True),
        "good": Style(color="#6cc070" if dark else "#1d7a34"),
        "warn": Style(color="#e6b450" if dark else "#8a5a00"),
        "bad": Style(color="#f06a5d" if dark else "#b3261e", bold=True),
        "accent": Style(color="#62aef0" if dark else "#0b5cad"),
        "mark": Style(reverse=True, bold=True),
    }
    return named | {f"heat-{level}": Style(color=color) for level, color in enumerate(heat)}
