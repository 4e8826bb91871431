"""The winner as a recipe: the one that was tuned, extended by the keys that won. Pure.

Keys and values are those of `--set`, YAML already; they are put together as nodes, so that every scalar stays as it was
written (`3e-4`, `"010"`).
"""

from __future__ import annotations

from collections.abc import Iterable

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode


def recipe_of(sets: Iterable[str], base: str, remark: str) -> str:
    """A recipe that extends the one at `base` by `key=value` texts, of which later ones win. remark: its comment."""
    root = _mapping([])
    _put(root, ["extends"], _text(base))
    for text in sets:
        key, _, value = text.partition("=")
        _put(root, key.split("."), yaml.compose(value, Loader=yaml.SafeLoader) or _text(""))
    lines = "".join(f"# {line}\n" for line in remark.splitlines())
    return lines + str(yaml.serialize(root, Dumper=yaml.SafeDumper, width=120, allow_unicode=True))


def _put(place: MappingNode, path: list[str], value: Node) -> None:
    """Set a key, or, where both are mappings, the keys in it."""
    first, *rest = path
    found = next((node for key, node in place.value if key.value == first), None)
    if rest:
        inner = found if isinstance(found, MappingNode) else _mapping([])
        _replace(place, first, inner)
        _put(inner, rest, value)
    elif isinstance(found, MappingNode) and isinstance(value, MappingNode):
        for key, each in value.value:
            _put(found, [key.value], each)
    else:
        _replace(place, first, value)


def _replace(place: MappingNode, key: str, value: Node) -> None:
    place.value = [(name, node) for name, node in place.value if name.value != key] + [(_text(key), value)]


def _mapping(entries: list[tuple[Node, Node]]) -> MappingNode:
    return MappingNode("tag:yaml.org,2002:map", entries, flow_style=False)


def _text(text: str) -> ScalarNode:
    return ScalarNode("tag:yaml.org,2002:str", text)
