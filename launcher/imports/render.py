"""An import as text: the recipe with a comment on every line, and the report."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator

import yaml

from launcher import words
from launcher.imports.deepspeed import shown
from launcher.imports.findings import ASKED, Fate, Imported, Line, in_order

PLAIN = re.compile(r"[A-Za-z_./][A-Za-z0-9_./:@+-]*")
KEYWORDS = {"null", "true", "false", "yes", "no", "on", "off", "y", "n"}
# What a recipe for training cannot do without, and these files never say.
WANTED = {
    "model.preset": "llama-1b        or family and sizes, as your model has them",
    "data.text": '["corpus/*.txt"]   or tokens: folders made by `distperf data prepare`',
    "train.steps": "1000",
}


def recipe(imported: Imported, source: str) -> str:
    """YAML; what only the user can say stands in it as a comment."""
    lines = list(imported.lines)
    present = {line.key for line in lines}
    script = "script.path" in present
    if script:
        lines = [
            line for line in lines if line.key.partition(".")[0] in ("script", "launch", "name", "slurm")
        ]
    else:
        lines += [Line(key, ASKED, text) for key, text in WANTED.items() if key not in present]
    text = [f"# Made from {source} by `distperf import`."]
    if any(line.value is ASKED for line in lines):
        text.append(
            "# Lines that begin with a # are yours to fill in; without them distperf's defaults count."
        )
    section = ""
    for line in in_order(lines):
        path = line.key.split(".")
        head = ".".join(path[:-1])
        text += _heads(section, path[:-1])
        section = head
        text.append(_line(line, path))
    return "\n".join(text) + "\n"


def _heads(before: str, path: list[str]) -> Iterator[str]:
    """The headings of sections that begin here."""
    old = before.split(".") if before else []
    for depth, name in enumerate(path):
        if path[: depth + 1] != old[: depth + 1]:
            yield f"{'  ' * depth}{name}:"


def _line(line: Line, path: list[str]) -> str:
    indent = "  " * (len(path) - 1)
    if line.value is ASKED:
        return f"{indent}# {path[-1]}: {line.why}"
    text = f"{indent}{path[-1]}: {_yaml(line.value)}"
    return f"{text}  # {line.why}" if line.why else text


def _yaml(value: object) -> str:
    """A value on one line, as a recipe reads it back."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_yaml, value))}]"
    if isinstance(value, str):
        if PLAIN.fullmatch(value) and value.lower() not in KEYWORDS and not value.endswith(":"):
            return value
        return str(yaml.safe_dump(value, default_style='"', width=2**20, allow_unicode=True)).strip()
    return repr(value) if isinstance(value, float) else shown(value)


def report(imported: Imported, sources: Iterable[str]) -> list[str]:
    """What became of every key, by what became of it; a line of figures first."""
    total = len(imported.findings)
    counts = ", ".join(
        f"{count} {fate.value}" for fate in Fate if (count := imported.count(fate)) or fate is Fate.CARRIED
    )
    share = f" ({100 * imported.understood // total} %)" if total else ""
    text = [
        f"{', '.join(sources)}: {words.plural(total, 'key')}, {imported.understood} understood{share}: {counts}"
    ]
    for fate in Fate:
        found = [finding for finding in imported.findings if finding.fate is fate]
        if found:
            text.append(f"{fate.value}:")
            text += [f"  {f.key} = {_short(f.value)}: {f.note}" for f in found]
    text += [f"note: {note}" for note in imported.notes]
    if "script.path" in {line.key for line in imported.lines}:
        text.append(f"start it: {shlex.join(['distperf', 'launch', 'recipe.yaml', *imported.command])}")
    else:
        text.append(f"plan it: {shlex.join(['distperf', 'plan', 'recipe.yaml', *imported.command])}")
    return text


def _short(value: object) -> str:
    text = shown(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
