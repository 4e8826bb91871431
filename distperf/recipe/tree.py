"""A YAML document as a tree in which everything knows where it was written.

Scalars stay text here: only the field that takes a value knows whether `1e-4`, `no` or `010` is a number, a switch
or just text.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Mark:
    """A place: `file:line:column`, counted from 1, or a command-line flag, which has no line."""

    source: str
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        return f"{self.source}:{self.line}:{self.column}" if self.line else self.source


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong, and where."""

    mark: Mark
    text: str

    def __str__(self) -> str:
        return f"{self.mark}: {self.text}"


class Plain(str):
    """A scalar written without quotes: the only kind that a number, true/false or null is read from."""

    @property
    def is_null(self) -> bool:
        """True for `~`, `null` and nothing at all."""
        return self in ("", "~", "null", "Null", "NULL")


@dataclass(frozen=True)
class ScalarNode:
    """Text, and whether it was in quotes."""

    mark: Mark
    text: str  # a Plain where it was written without quotes

    size: int = 1


@dataclass(frozen=True)
class ListNode:
    """Items in order."""

    mark: Mark
    items: tuple[Node, ...]
    size: int  # nodes in this subtree, every alias counted as what it stands for


@dataclass(frozen=True)
class Entry:
    """A key of a mapping and its value."""

    mark: Mark  # of the key
    node: Node


@dataclass(frozen=True)
class MapNode:
    """Keys in order. What is merged with `<<` keeps the places where it was written."""

    mark: Mark
    entries: dict[str, Entry]
    size: int


Node = ScalarNode | ListNode | MapNode


def is_null(node: Node) -> bool:
    """True for `~`, `null` and a value that was left out."""
    return isinstance(node, ScalarNode) and isinstance(node.text, Plain) and node.text.is_null


def merge(base: MapNode, over: MapNode) -> MapNode:
    """`base` with what `over` says put on top: mappings are merged key by key, lists and scalars replaced."""
    entries = dict(base.entries)
    for key, entry in over.entries.items():
        entries[key] = _merge_entry(entries[key], entry) if key in entries else entry
    return MapNode(over.mark if over.mark.line else base.mark, entries, base.size + over.size)


def _merge_entry(base: Entry, over: Entry) -> Entry:
    if isinstance(base.node, MapNode) and is_null(over.node):
        return base  # a section that was left empty says nothing
    if isinstance(base.node, MapNode) and isinstance(over.node, MapNode):
        return Entry(over.mark if over.mark.line else base.mark, merge(base.node, over.node))
    return over


def to_data(node: Node) -> Any:
    """Plain Python data: dict, tuple, str, and Plain for what stood without quotes."""
    if isinstance(node, MapNode):
        return {key: to_data(entry.node) for key, entry in node.entries.items()}
    if isinstance(node, ListNode):
        return tuple(to_data(item) for item in node.items)
    return node.text


def marks(node: Node, path: str = "") -> Iterator[tuple[str, Mark]]:
    """The dotted path of every key below `node`, with the place of its value."""
    if isinstance(node, MapNode):
        for key, entry in node.entries.items():
            inner = f"{path}.{key}" if path else key
            yield inner, entry.node.mark
            yield from marks(entry.node, inner)


def mark_of(tree: MapNode, path: tuple[str | int, ...], *, key: bool = False) -> Mark:
    """Place of the value (or of the `key`) at `path`, or of the innermost thing around it that was written."""
    node: Node = tree
    found = tree.mark
    for step in path:
        if isinstance(node, MapNode) and step in node.entries:
            entry = node.entries[str(step)]
            node, found = entry.node, entry.mark
        elif isinstance(node, ListNode) and isinstance(step, int) and step < len(node.items):
            node = node.items[step]
            found = node.mark
        else:
            return found
    return found if key else node.mark


def shown(value: object) -> str:
    """A value as an error message shows it: short, on one line."""
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, tuple | list):
        return "a list"
    text = str(value)
    if isinstance(value, Plain) and not text:
        return "empty"
    if len(text) > 60:
        text = text[:57] + "..."
    quoted = not isinstance(value, Plain | int | float)
    return text if text.isprintable() and not quoted else ascii(text)
