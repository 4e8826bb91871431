"""YAML text -> tree with positions. PyYAML scans and parses; what its events mean is decided here.

The parser in Python, not the one in C, on purpose: a recipe takes it 2 ms, and the two disagree on corner
cases (escapes of surrogates, which carry file names that are not UTF-8): one behaviour everywhere is worth more.

Read strictly: duplicate keys, tags, several documents and recursive aliases are refused. Anchors, aliases and
merge keys (`<<`) work; a key beside `<<` overrides the merged one.
"""

from __future__ import annotations

from typing import NoReturn, cast

import yaml
from yaml.events import (
    AliasEvent,
    DocumentEndEvent,
    DocumentStartEvent,
    Event,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
    StreamEndEvent,
)

from distperf.errors import RecipeError
from distperf.recipe.tree import (
    Entry,
    ListNode,
    MapNode,
    Mark,
    Node,
    Plain,
    Problem,
    ScalarNode,
    is_null,
    shown,
)

MAX_DEPTH = 40
MAX_NODES = 20_000  # after aliases are expanded: a few lines of them can stand for billions of nodes

HINTS = {
    "cannot start any token": "indent with spaces, not tabs; quote text that begins with a special character",
    "mapping values are not allowed here": "check the indentation, and quote text that contains ': '",
    "could not find expected ':'": "a key is followed by ': '",
}


def compose(text: str, at: Mark, problems: list[Problem]) -> Node | None:
    """The one document in `text`, or None where there is none.

    `at` is where the text begins: line 1 of a file, or a flag, which is then the place of everything in it.
    Faults that leave the rest readable are added to `problems`. Raises RecipeError, `problems` included, for others.
    """
    return _Composer(text, at, problems).document()


class _Composer:
    def __init__(self, text: str, at: Mark, problems: list[Problem]) -> None:
        self.at = at
        self.problems = problems
        self.anchors: dict[str, Node | None] = {}  # None while the node is still being read
        try:
            self.loader = yaml.SafeLoader(text)
        except yaml.reader.ReaderError as error:
            before = text[: error.position].split("\n")
            mark = self.mark(len(before), len(before[-1]) + 1)
            self.fail(mark, f"the character {text[error.position]!a} is not allowed in YAML")

    def fail(self, mark: Mark, text: str) -> NoReturn:
        raise RecipeError(*(str(problem) for problem in self.problems), str(Problem(mark, text)))

    def mark(self, line: int, column: int) -> Mark:
        return Mark(self.at.source, line, column) if self.at.line else self.at

    def mark_at(self, start: yaml.Mark | None) -> Mark:
        assert start is not None
        return self.mark(start.line + 1, start.column + 1)

    def next(self) -> Event:
        try:
            return cast(Event, self.loader.get_event())  # type: ignore[no-untyped-call]  # PyYAML's stubs
        except yaml.MarkedYAMLError as error:
            at = error.problem_mark or error.context_mark
            problem = error.problem or error.context or "not YAML"
            hint = next((f"; {hint}" for found, hint in HINTS.items() if found in problem), "")
            self.fail(self.mark_at(at), f"not YAML: {problem}{hint}")
        except (ValueError, OverflowError):  # chr() of an escape beyond Unicode, int() of a version's digits
            mark = self.mark_at(self.loader.get_mark())
            self.fail(mark, "not YAML: an escape or a number beyond all bounds")

    def document(self) -> Node | None:
        self.next()  # the start of the stream
        start = self.next()
        if isinstance(start, StreamEndEvent):
            return None
        assert isinstance(start, DocumentStartEvent)
        node = self.node(self.next(), 0)
        assert isinstance(self.next(), DocumentEndEvent)
        more = self.next()
        if isinstance(more, DocumentStartEvent):
            mark = self.mark_at(cast(yaml.Mark, more.start_mark))
            self.problems.append(Problem(mark, "a second document starts here; a recipe is one document"))
        return node

    def node(self, event: Event, depth: int) -> Node:
        mark = self.mark_at(cast(yaml.Mark, event.start_mark))
        if depth > MAX_DEPTH:
            self.fail(mark, f"nested more than {MAX_DEPTH} levels deep")
        if isinstance(event, AliasEvent):
            return self.alias(event, mark)
        assert isinstance(event, ScalarEvent | SequenceStartEvent | MappingStartEvent)
        if event.tag is not None:
            text = f"the tag {shown(Plain(event.tag))} is not used in recipes; quote a value to make it text"
            self.problems.append(Problem(mark, text))
        if event.anchor is not None:
            self.anchors[event.anchor] = None
        if isinstance(event, ScalarEvent):
            node: Node = self.scalar(event, mark)
        elif isinstance(event, SequenceStartEvent):
            node = self.sequence(mark, depth)
        else:
            node = self.mapping(mark, depth)
        if event.anchor is not None:
            self.anchors[event.anchor] = node
        return node

    def bound(self, size: int, mark: Mark) -> None:
        if size > MAX_NODES:
            self.fail(mark, f"more than {MAX_NODES} values once aliases are expanded")

    def alias(self, event: AliasEvent, mark: Mark) -> Node:
        name = Plain(event.anchor)
        if event.anchor not in self.anchors:
            self.fail(mark, f"the alias *{shown(name)} has no anchor &{shown(name)} before it")
        node = self.anchors[event.anchor]
        if node is None:
            self.fail(mark, f"the alias *{shown(name)} stands inside of what it names")
        return node

    def scalar(self, event: ScalarEvent, mark: Mark) -> ScalarNode:
        text = event.value
        # U+DC80..DCFF stand for bytes of a name that is not UTF-8 (as in sys.argv), other surrogates for nothing.
        if any("\ud800" <= char <= "\udfff" and not "\udc80" <= char <= "\udcff" for char in text):
            self.problems.append(Problem(mark, f"{shown(text)} holds half of a surrogate pair: no character"))
        return ScalarNode(mark, Plain(text) if event.style is None else text)

    def sequence(self, mark: Mark, depth: int) -> ListNode:
        items: list[Node] = []
        size = 1
        while not isinstance(event := self.next(), SequenceEndEvent):
            items.append(self.node(event, depth + 1))
            size += items[-1].size
            self.bound(size, mark)
        return ListNode(mark, tuple(items), size)

    def mapping(self, mark: Mark, depth: int) -> MapNode:
        entries: dict[str, Entry] = {}
        merged: Entry | None = None
        size = 1
        while not isinstance(event := self.next(), MappingEndEvent):
            key = self.node(event, depth + 1)
            if not isinstance(key, ScalarNode) or not key.text:
                self.fail(key.mark, "a key must be a word")
            entry = Entry(key.mark, self.node(self.next(), depth + 1))
            size += 1 + entry.node.size
            self.bound(size, mark)
            is_merge = key.text == "<<" and isinstance(key.text, Plain)
            first = merged if is_merge else entries.get(key.text)
            if first is not None:
                text = f"duplicate key {shown(Plain(key.text))}, first at {first.mark}"
                self.problems.append(Problem(key.mark, text))
            elif is_merge:
                merged = entry
            else:
                entries[str(key.text)] = entry
        if merged is not None:
            entries = {**self.merged(merged), **entries}
        return MapNode(mark, entries, size)

    def merged(self, entry: Entry) -> dict[str, Entry]:
        """What `<<` brings in: of several mappings, the earlier one wins."""
        nodes = entry.node.items if isinstance(entry.node, ListNode) else (entry.node,)
        entries: dict[str, Entry] = {}
        for node in reversed(nodes):
            if isinstance(node, MapNode):
                entries.update(node.entries)
            elif not is_null(node):
                self.problems.append(Problem(node.mark, "<< merges a mapping or a list of mappings"))
        return entries
