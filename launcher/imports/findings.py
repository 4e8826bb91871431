"""What an import comes to: lines of a recipe, and a finding for every key of what was imported."""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from distperf.recipe.kinds import Kind
from distperf.recipe.schema import known_keys

ASKED = object()  # the value of a line that only the user can fill in


class Fate(enum.Enum):
    """What became of a key. The values are the report's headings."""

    CARRIED = "in the recipe"
    NEEDLESS = "need nothing"
    INSTEAD = "not available"
    ASKED = "to be decided"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Finding:
    """One key of what was imported. note: where it went, why it needs nothing, or what to do instead."""

    key: str
    value: Any
    fate: Fate
    note: str


@dataclass(frozen=True)
class Line:
    """One key of the recipe, dotted. value ASKED: shown as a comment, to be filled in."""

    key: str
    value: Any
    why: str


@dataclass(frozen=True)
class Imported:
    """lines: in the order of the recipe. command: `distperf launch` and its arguments. notes: what else to know."""

    lines: tuple[Line, ...] = ()
    findings: tuple[Finding, ...] = ()
    command: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default=())

    def __add__(self, other: Imported) -> Imported:
        """Both; of lines for the same key, the first stays."""
        taken = {line.key for line in self.lines}
        return Imported(
            self.lines + tuple(line for line in other.lines if line.key not in taken),
            self.findings + other.findings,
            self.command + other.command,
            self.notes + other.notes,
        )

    def count(self, *fates: Fate) -> int:
        """How many keys came to one of these ends."""
        return sum(finding.fate in fates for finding in self.findings)

    @property
    def understood(self) -> int:
        """Keys that were known for what they are, whether or not the recipe has them."""
        return len(self.findings) - self.count(Fate.UNKNOWN)


def flat(data: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """Dotted key -> value. Lists are values, and so are empty mappings."""
    keys: dict[str, Any] = {}
    for name, value in data.items():
        keys.update(
            flat(value, f"{path}{name}.") if isinstance(value, Mapping) and value else {path + name: value}
        )
    return keys


def settled(imported: Imported, sets: Mapping[str, Any], known: Collection[str] | None = None) -> Imported:
    """With the user's own values in place, and without lines that this version's schema does not take."""
    fields = known_keys()
    lines: list[Line] = []
    refused: dict[str, str] = {}
    for line in imported.lines:
        value = sets.get(line.key, line.value)
        why = "" if value is ASKED else _refusal(fields, line.key, value)
        if why:
            refused[line.key] = why
        else:
            lines.append(line if line.key not in sets else Line(line.key, value, "given with --set"))
    present = {line.key for line in lines}
    lines += [Line(key, value, "given with --set") for key, value in sets.items() if key not in present]
    findings = tuple(_with_refusals(finding, refused) for finding in imported.findings)
    return replace(imported, lines=tuple(lines), findings=findings)


def _with_refusals(finding: Finding, refused: Mapping[str, str]) -> Finding:
    keys = [key for key in refused if finding.fate is Fate.CARRIED and f"{key}:" in finding.note]
    if not keys:
        return finding
    return replace(finding, fate=Fate.INSTEAD, note=f"{finding.note}: {refused[keys[0]]}")


def _refusal(fields: Mapping[str, Any], key: str, value: Any) -> str:
    if key.startswith("launch.env."):
        return ""
    if key not in fields:
        return "not yet in this version"
    for kind in fields[key].metadata:
        if isinstance(kind, Kind):
            try:
                kind.read(tuple(value) if isinstance(value, list) else value)
            except ValueError as error:
                return f"not yet in this version: {key} {error}"
    return ""


def in_order(lines: Iterable[Line]) -> list[Line]:
    """Lines in the order of the reference page, so that sections are whole."""
    order = {key: place for place, key in enumerate(known_keys())}
    return sorted(lines, key=lambda line: order.get(line.key, order["launch.env"]))
