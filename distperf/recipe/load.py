"""Reading a recipe: files, `extends`, `--set` flags and tokenizer files in; a checked Recipe, or all problems, out."""

from __future__ import annotations

import codecs
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from distperf.errors import RecipeError
from distperf.recipe.check import check, check_section
from distperf.recipe.compose import compose
from distperf.recipe.kinds import meant
from distperf.recipe.loop import LoopRecipe, loop_faults
from distperf.recipe.schema import Recipe, listed_section
from distperf.recipe.sections import Section
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
    merge,
    shown,
)
from distperf.recipe.vocab import tokenizer_vocab

# A recipe has a few thousand bytes: this keeps a data file that was given by mistake from being parsed.
MAX_BYTES = 256 * 1024


def load_recipe(path: str | os.PathLike[str], sets: Sequence[str] = ()) -> Recipe:
    """The recipe in a file, laid over what it extends, with `key=value` flags on top, checked.

    A tokenizer file is read here for its vocabulary, unless `model.vocab` is given.

    Raises: RecipeError with every problem found, each with file:line:column, or with the flag.
    """
    problems: list[Problem] = []
    tree = _with_sets(_with_bases(os.fspath(path), problems), sets, problems)
    return _with_vocab(check(tree, _name_from(path), problems))


def script_recipe(path: str, args: Sequence[str] = (), sets: Sequence[str] = ()) -> Recipe:
    """The recipe that runs a script of the user's own: `launch --script PATH -- ARGS`.

    Raises: RecipeError with every problem found.
    """
    problems: list[Problem] = []
    mark = Mark("--script")
    items = tuple(ScalarNode(Mark("arguments after --"), arg) for arg in args)
    script = _mapping(mark, {"path": ScalarNode(mark, path), "args": ListNode(mark, items, 1 + len(items))})
    tree = _with_sets(_mapping(mark, {"script": script}), sets, problems)
    return check(tree, _name_from(path), problems)


def loop_recipe(source: str | os.PathLike[str] | Mapping[str, Any] | None) -> LoopRecipe:
    """The recipe of a loop of the user's own, from a file (with what it extends) or from a mapping; None: defaults.

    Raises: RecipeError with every problem found.
    """
    problems: list[Problem] = []
    if source is None or isinstance(source, Mapping):
        tree = _given_tree(source or {}, problems)
    else:
        tree = _with_bases(os.fspath(source), problems)
    return check_section(LoopRecipe, tree, {}, loop_faults, problems)


def _given_tree(data: Mapping[str, Any], problems: list[Problem]) -> MapNode:
    mark = Mark("recipe")
    try:
        node = compose(yaml.safe_dump(dict(data), sort_keys=False), mark, problems)
    except yaml.representer.RepresenterError as error:
        raise RecipeError(f"{mark}: holds a value that no YAML file could: {error.args[-1]!r}") from None
    assert isinstance(node, MapNode), "a mapping is one"
    return node


def dump_recipe(recipe: Recipe) -> str:
    """YAML that loads to an equal recipe: everything said, nothing inherited."""
    data = _said(recipe)
    if recipe.script is not None:
        data = {key: data[key] for key in ("name", "launch", "slurm", "script")}
    text: str = yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=2**20)
    if all(char.isprintable() or char == "\n" for char in text):
        return text
    # PyYAML leaves line breaks beyond ASCII (U+0085, U+2028) unescaped, and reads them as spaces.
    return str(yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=False, width=2**20))


class _Dumper(yaml.SafeDumper):
    """Quotes text that would read as something else where any value may stand."""

    def represent_str(self, data: str) -> yaml.ScalarNode:
        plain = isinstance(meant(Plain(data)), str)
        return self.represent_scalar("tag:yaml.org,2002:str", data, style=None if plain else '"')


_Dumper.add_representer(str, _Dumper.represent_str)


def _said(section: Section) -> dict[str, Any]:
    """The data of a section without what is null anyway."""
    data: dict[str, Any] = {}
    for (key, field), (_, value) in zip(type(section).fields_by_key().items(), section, strict=True):
        if isinstance(value, Section):
            data[key] = _said(value)
        elif listed_section(field):
            data[key] = [_said(item) for item in value]
        elif value is not None or field.default is not None:
            data[key] = list(value) if isinstance(value, tuple) else value
    return data


def _with_bases(path: str, problems: list[Problem]) -> MapNode:
    """The tree of a file, laid over those of the chain of files it extends."""
    layers: list[MapNode] = []
    chain = [path]
    said_at: Mark | None = None
    while True:
        tree = _read_tree(chain[-1], said_at, problems)
        entries = {key: entry for key, entry in tree.entries.items() if key != "extends"}
        layers.append(MapNode(tree.mark, entries, tree.size))
        extends = tree.entries.get("extends")
        if extends is None or is_null(extends.node):
            break
        said_at = extends.node.mark
        if not isinstance(extends.node, ScalarNode) or not extends.node.text or "\0" in extends.node.text:
            problems.append(Problem(said_at, "extends takes the path of one other recipe"))
            break
        base = os.path.normpath(os.path.join(os.path.dirname(chain[-1]), extends.node.text))
        chain.append(base)
        if os.path.realpath(base) in map(os.path.realpath, chain[:-1]):
            circle = Problem(said_at, f"extends goes in a circle: {' -> '.join(map(_path_shown, chain))}")
            raise RecipeError(*map(str, problems), str(circle))
    whole = layers.pop()
    while layers:
        whole = merge(whole, layers.pop())
    return whole


def _read_tree(path: str, said_at: Mark | None, problems: list[Problem]) -> MapNode:
    """The tree of one file; `said_at` is where another file named it."""
    source = _path_shown(path)
    try:
        with open(path, "rb") as file:
            content = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = error.strerror if isinstance(error, OSError) else str(error)
        text = f"cannot read recipe {source}: {reason}"
        raise RecipeError(*map(str, problems), f"{said_at}: {text}" if said_at else text) from None
    start = Mark(source, 1, 1)
    content = content.removeprefix(codecs.BOM_UTF8)
    if len(content) > MAX_BYTES:
        raise RecipeError(f"{start}: larger than {MAX_BYTES // 1024} KiB; this is not a recipe")
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        before = content[: error.start].decode().split("\n")
        mark = Mark(source, len(before), len(before[-1]) + 1)
        byte = f"0x{content[error.start]:02x}"
        raise RecipeError(f"{mark}: not UTF-8 (byte {byte}); save the file as UTF-8") from None
    node = compose(text, start, problems)
    if node is None or is_null(node):
        empty = f"{start}: the recipe is empty; `distperf init` writes one to start from"
        raise RecipeError(*map(str, problems), empty)
    if not isinstance(node, MapNode):
        other = f"{node.mark}: a recipe is a mapping (name: ..., model: ..., ...)"
        raise RecipeError(*map(str, problems), other)
    return MapNode(start, node.entries, node.size)


def _with_sets(tree: MapNode, sets: Sequence[str], problems: list[Problem]) -> MapNode:
    for flag in sets:
        if (layer := _set_tree(flag, problems)) is not None:
            tree = merge(tree, layer)
    return tree


def _set_tree(flag: str, problems: list[Problem]) -> MapNode | None:
    """The tree that a `--set key=value` stands for; None, and a problem, where it stands for none."""
    key, equals, value = flag.partition("=")
    mark = Mark(f"--set {shown(Plain(flag))}")
    steps = key.strip().split(".")
    if not equals or not all(steps):
        problems.append(Problem(mark, "it takes key=value: --set train.steps=100"))
        return None
    if steps[0] == "extends":
        problems.append(Problem(mark, "extends stands in the file"))
        return None
    node = compose(value, mark, problems)
    if node is None and value.strip():
        problems.append(Problem(mark, "the value reads as nothing in YAML (# begins a comment); quote it"))
        return None
    node = node or ScalarNode(mark, Plain(""))
    for step in reversed(steps):
        node = _mapping(mark, {step: node})
    assert isinstance(node, MapNode)
    return node


def _mapping(mark: Mark, nodes: dict[str, Node]) -> MapNode:
    return MapNode(mark, {key: Entry(mark, node) for key, node in nodes.items()}, 1 + len(nodes))


def _with_vocab(recipe: Recipe) -> Recipe:
    """Fill in `model.vocab` from a tokenizer file, as ranks will find it in `launch.workdir`."""
    model, data = recipe.model, recipe.data
    if model is None or data is None or model.vocab is not None or model.hf or data.tokenizer == "byte":
        return recipe
    path = Path(recipe.launch.workdir, data.tokenizer)
    try:
        vocab = tokenizer_vocab(path)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else f"{error}"
        text = f"cannot read the vocabulary of data.tokenizer {_path_shown(str(path))}: {reason}; or give model.vocab"
        raise RecipeError(f"{recipe.place('data.tokenizer')}: {text}") from None
    filled = recipe.model_copy(update={"model": model.model_copy(update={"vocab": vocab})})
    filled._places["model.vocab"] = recipe.place("data.tokenizer")
    return filled


def _name_from(path: str | os.PathLike[str]) -> str:
    """A run's name from a file's."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", Path(path).stem, flags=re.ASCII).lstrip(".-")[:100] or "run"


def _path_shown(path: str) -> str:
    return path if path.isprintable() else ascii(path)
