"""The reference page of the recipe, made from the schema: `python -m distperf.recipe.reference > docs/recipe.md`."""

from __future__ import annotations

import sys
import typing

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from distperf.recipe.kinds import Kind
from distperf.recipe.presets import PRESETS
from distperf.recipe.schema import Recipe, listed_section, section_of
from distperf.recipe.sections import Section

INTRODUCTION = """\
# The recipe

One YAML file says what is trained and how it is launched. This page is made from the schema by
`python -m distperf.recipe.reference`; `distperf schema` prints the same as JSON Schema, and `distperf init` writes a
commented recipe to start from.

## How it is read

- Every fault is told at once, each with `file:line:column` (or the flag), before any host is contacted. Unknown and
  duplicate keys are faults.
- Numbers are decimal, as in JSON; `1e-4`, `1e4` and `1.0e-4` are numbers where a number is wanted, `1e4` a whole one
  too. `010`, `0x10`, `1_000`, `12:30`, `.nan`, `.inf` and numbers in quotes are refused.
- Where text is wanted, everything is text as it was spelled: `no`, `on`, `010`, `12:30`, `1.10`, `true`.
- A switch takes `true` or `false`, and nothing else.
- `null`, `~` or nothing after a key is null where null is allowed. An empty section, list or mapping says nothing.
- Anchors, aliases and merge keys (`<<`) work, and a key beside `<<` overrides the merged one. Tags and a second
  document are refused.
- `extends: other.yaml` lays this file over another: mappings are merged key by key, lists and scalars are replaced.
- `--set section.key=value` goes on top, read by the same rules (`--set 'data.text=[a.txt, b.txt]'`); the last one wins.
- Paths that ranks read or write are relative to `launch.workdir`; `extends` is relative to the file it stands in. A
  tokenizer file is also read by the launcher, for its number of ids, unless `model.vocab` is given.
- A run resolves every `auto` and says why it became what it is.
"""


def reference() -> str:
    """The page, in Markdown."""
    parts = [INTRODUCTION, "## Top level\n", _table(Recipe)]
    parts += [part for name, field in Recipe.fields_by_key().items() for part in _section(name, field)]
    return "\n".join((*parts, _presets()))


def _section(path: str, field: FieldInfo) -> list[str]:
    listed = listed_section(field)
    section = section_of(field) or listed
    if section is None:
        return []
    parts = [f"## `{path}`{', each item' if listed else ''}\n", f"{section.__doc__}\n", _table(section)]
    return parts + [
        part for name, inner in section.fields_by_key().items() for part in _section(f"{path}.{name}", inner)
    ]


def _table(section: type[Section]) -> str:
    rows = ["| key | takes | default | meaning |", "|---|---|---|---|"]
    for name, field in section.fields_by_key().items():
        takes = (
            "a section"
            if section_of(field)
            else "a list of sections"
            if listed_section(field)
            else _takes(field.annotation, field.metadata)
        )
        rows.append(f"| `{name}` | {takes} | {_default(field)} | {field.description} |")
    return "\n".join(rows) + "\n"


def _takes(annotation: object, metadata: typing.Sequence[object] = ()) -> str:
    """What a field takes: the words of its kind, or of the kinds in its list or mapping."""
    if kind := next((item for item in metadata if isinstance(item, Kind)), None):
        return kind.wants
    if typing.get_origin(annotation) is typing.Annotated:
        return _takes(None, annotation.__metadata__)  # type: ignore[attr-defined]  # an Annotated has it
    if typing.get_origin(annotation) is dict:
        return f"a mapping, each value {_takes(typing.get_args(annotation)[1])}"
    if typing.get_origin(annotation) is tuple:
        return f"a list, each {_takes(typing.get_args(annotation)[0])}"
    return f"{_takes(typing.get_args(annotation)[0])}, or null"


def _default(field: FieldInfo) -> str:
    if field.default_factory:
        return "its keys'" if section_of(field) else "`{}`"
    if field.default is PydanticUndefined:
        return "required"
    if field.default is None:
        return "none"
    if isinstance(field.default, tuple):
        return f"`[{', '.join(map(str, field.default))}]`"
    return f"`{str(field.default).lower() if isinstance(field.default, bool) else field.default}`"


def _presets() -> str:
    rows = [
        "## Presets\n",
        "Published Llama shapes from 1b up; smaller ones suit CPUs and small GPUs. The vocabulary comes from the",
        "tokenizer: a name says the size with byte text up to 12m, with 8192 ids for 28m, and 32000 from 110m up.\n",
        "| preset | layers | hidden | heads | kv_heads | ffn | tied_embedding | rope_theta |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, p in PRESETS.items():
        tied = str(p.tied_embedding).lower()
        sizes = (p.layers, p.hidden, p.heads, p.kv_heads or p.heads, p.ffn, tied, f"{p.rope_theta:.0f}")
        rows.append(f"| `{name}` | {' | '.join(map(str, sizes))} |")
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    sys.stdout.write(reference())
