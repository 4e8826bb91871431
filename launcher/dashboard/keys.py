"""The keys of each view, as the bottom line and the help tell of them. Pure data, and the text made of it."""

from __future__ import annotations

from dataclasses import dataclass

from launcher.dashboard.lines import Line, Look, Span, fit, line, rule, width

VIEWS = ("overview", "ranks", "rank", "logs", "events", "plan")


@dataclass(frozen=True)
class Key:
    """A key, what it is called, what it does (an action of the app), and why one would press it."""

    key: str
    label: str
    action: str
    help: str
    shown: str = ""  # how the key is written, where it is not by its name

    @property
    def name(self) -> str:
        """As people read it."""
        return self.shown or self.key


EVERYWHERE = (
    Key("q", "quit", "quit", "leave; the run goes on"),
    Key("question_mark", "help", "help", "this page", "?"),
    Key("s", "stop", "ask('stop')", "end the run in order, after a question (owner only)"),
    Key(
        "x",
        "stacks",
        "ask('stacks')",
        "take the Python stack of every rank, without disturbing it (owner only)",
    ),
    Key("c", "checkpoint", "ask('save')", "write a checkpoint now, after a question (owner only)"),
    Key("d", "dark/light", "dark", "dark or light"),
    Key("r", "go to rank", "goto", "open a rank by its number"),
    Key("tab", "next view", "next", "next view; 1 to 6 go straight to one", "Tab"),
)
OF_VIEW: dict[str, tuple[Key, ...]] = {
    "overview": (),
    "ranks": (
        Key(
            "m",
            "metric",
            "metric",
            "heat by step time, a rank's own time, steps behind, memory; CPU, device use and heat where known",
        ),
        Key("f", "fold", "fold", "cells are ranks, or nodes"),
        Key("enter", "open", "open", "open the rank under the cursor; arrows move it", "Enter"),
    ),
    "rank": (
        Key("left", "previous", "other(-1)", "the rank before", "<-"),
        Key("right", "next", "other(1)", "the rank after", "->"),
    ),
    "logs": (
        Key("slash", "search", "search", "mark what matches; n and N go there", "/"),
        Key("n", "next", "hit(1)", "next match"),
        Key("N", "", "hit(-1)", "match before"),
        Key("g", "filter", "grep", "only lines that match a regular expression"),
        Key("o", "ranks", "only", "only these ranks (0,4-7), or hosts (node[01-04])"),
        Key("l", "level", "level", "all lines, warnings and errors, or errors"),
        Key("z", "fold", "squeeze", "equal lines of several ranks as one"),
        Key("space", "follow", "follow", "stay at the newest line", "Space"),
    ),
    "events": (Key("enter", "unfold", "unfold", "show stacks and last lines of failures", "Enter"),),
    "plan": (),
}


def footer(view: str, look: Look) -> Line:
    """The keys of a view that the bottom line has room for, none of them in part; each can be clicked."""
    spans: list[Span] = []
    for key in (*EVERYWHERE[:2], *OF_VIEW.get(view, ()), *EVERYWHERE[2:]):
        if not key.label:
            continue
        more = [
            Span(f" {key.name}", "title", f"do {key.action}"),
            Span(f" {key.label} ", "dim", f"do {key.action}"),
        ]
        if width((*spans, *more)) > look.width:
            break
        spans += more
    return tuple(spans)


def tabs(view: str, look: Look) -> Line:
    """The views with their numbers; each can be clicked."""
    spans: list[Span] = []
    for number, name in enumerate(VIEWS, start=1):
        spans += [Span(f" {number} {name} ", "mark" if name == view else "dim", f"view {name}"), Span(" ")]
    return fit(spans, look.width)


def help_lines(look: Look) -> list[Line]:
    """All keys."""
    lines: list[Line] = [rule("keys", look)]
    lines += [_help(key) for key in EVERYWHERE]
    for view, keys in OF_VIEW.items():
        if keys:
            lines += [(), rule(f"in {view}", look), *(_help(key) for key in keys)]
    return [
        *lines,
        (),
        line(Span(" Everything is read from the run's folder; any number of people may watch.", "dim")),
    ]


def _help(key: Key) -> Line:
    return line(Span(f" {key.name:<8}", "title"), Span(f"{key.label:<12}", "accent"), key.help)
