"""Tree -> Recipe, or every problem in it, each where it stands."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from distperf.errors import RecipeError
from distperf.recipe.kinds import Kind
from distperf.recipe.rules import Fault, faults, section_faults
from distperf.recipe.schema import Recipe, known_keys, listed_section, section_of
from distperf.recipe.sections import Section
from distperf.recipe.suggest import advice
from distperf.recipe.tree import (
    ListNode,
    MapNode,
    Plain,
    Problem,
    is_null,
    mark_of,
    marks,
    shown,
    to_data,
)

WANTED = {"tuple_type": "a list", "dict_type": "a mapping", "model_type": "a mapping"}


S = TypeVar("S", bound=Section)


def check(tree: MapNode, default_name: str, problems: list[Problem]) -> Recipe:
    """The recipe in `tree`, called `default_name` where it has no name.

    Raises: RecipeError with `problems` and everything that is wrong here, in the order of the lines.
    """
    problems = [*problems, *(_located(tree, fault) for fault in section_faults(tree.entries))]
    recipe = check_section(Recipe, tree, {"name": default_name}, faults, problems)
    recipe._places.update((key, str(mark)) for key, mark in marks(tree))
    return recipe


def check_section(
    root: type[S],
    tree: MapNode,
    defaults: dict[str, Any],
    rules: Callable[[S], Iterator[Fault]],
    problems: list[Problem],
) -> S:
    """The section `root` in `tree`, with `defaults` for keys that are not there, held to `rules`.

    Raises: as `check`.
    """
    problems = list(problems)
    data = {**defaults, **_known_data(tree, root, (), list(known_keys(root)), problems)}
    try:
        found = root.model_validate(data)
    except ValidationError as error:
        details = error.errors()
        problems += [_explained(tree, detail) for detail in details]
        broken = {detail["loc"][0] for detail in details}
        sound = {key: value for key, value in data.items() if key not in broken}
        found = root.model_validate({**defaults, **sound})
    problems += [_located(tree, fault) for fault in rules(found)]
    if problems:
        raise RecipeError(*_in_order(problems))
    return found


def _known_data(
    tree: MapNode, section: type[Section], path: tuple[str, ...], known: list[str], problems: list[Problem]
) -> dict[str, Any]:
    """Data of the keys that exist; the others become problems, with the nearest of `known`. What was left empty says
    nothing.
    """
    data: dict[str, Any] = {}
    for key, entry in tree.entries.items():
        field = section.fields_by_key().get(key)
        if field is None:
            dotted = ".".join((*path, key))
            text = f"unknown key {shown(Plain(dotted))}; {advice('.'.join(path), key, known)}"
            problems.append(Problem(entry.mark, text))
        elif inner := section_of(field):
            if isinstance(entry.node, MapNode):
                data[key] = _known_data(entry.node, inner, (*path, key), known, problems)
            else:
                unsaid: dict[str, Any] | None = None if field.default is None else {}  # need not be there
                data[key] = unsaid if is_null(entry.node) else to_data(entry.node)
        elif (item := listed_section(field)) and isinstance(entry.node, ListNode):
            data[key] = tuple(
                _known_data(node, item, (*path, key), known, problems)
                if isinstance(node, MapNode)
                else to_data(node)
                for node in entry.node.items
            )
        elif not is_null(entry.node) or any(isinstance(kind, Kind) for kind in field.metadata):
            data[key] = to_data(entry.node)
    return data


def _explained(tree: MapNode, detail: ErrorDetails) -> Problem:
    """A finding of pydantic, in the words of a recipe."""
    path = detail["loc"]
    key, at_key = _dotted(path), path[-1] == "[key]"
    if detail["type"] == "missing":
        return Problem(mark_of(tree, path[:-1], key=True), f"missing key {key}")
    context: Mapping[str, Any] = detail.get("ctx", {})
    if "error" in context:
        text = str(context["error"])
    else:
        found, wanted = shown(detail["input"]), WANTED[detail["type"]]
        example = f": [{found}]" if wanted == "a list" and isinstance(detail["input"], str) else ""
        text = f"is {found}; it takes {wanted}{example}"
    if at_key:
        path = path[:-1]
    return Problem(mark_of(tree, path, key=at_key), f"{key} {text}")


def _dotted(path: tuple[int | str, ...]) -> str:
    """`data.text[0]`, or `a name in launch.env` for the key of a mapping."""
    if path[-1] == "[key]":
        return f"a name in {_dotted(path[:-2])}"
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return text.removeprefix(".")


def _located(tree: MapNode, fault: Fault) -> Problem:
    steps = (int(step) if step.isdigit() else step for step in fault.key.split(".") if step)
    return Problem(mark_of(tree, tuple(steps), key=fault.at_key), fault.text)


def _in_order(problems: list[Problem]) -> list[str]:
    """Lines of the problems, without repeats: by file in the order of appearance, then by position."""
    sources = list(dict.fromkeys(problem.mark.source for problem in problems))
    ranked = sorted(problems, key=lambda p: (sources.index(p.mark.source), p.mark.line, p.mark.column))
    return list(dict.fromkeys(str(problem) for problem in ranked))
