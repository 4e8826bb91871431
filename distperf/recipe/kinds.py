"""What a recipe field takes: how its text is read, what is refused and why, and its JSON Schema.

Numbers are decimal, as in JSON (`1e-4`, `1e4` and `1e+4` included; a whole number may be written `1e4` too): a
leading zero, `0x`, `1_000`, `12:30`, nan and inf are refused, not guessed at, and so is a number in quotes. A switch
is `true` or `false`. Where text is wanted, every scalar is what was written: `no`, `010`, `1.10` keep their spelling.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, core_schema

from distperf.recipe.tree import Plain, shown

NUMBER = re.compile(r"[-+]?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?")
WHOLE = re.compile(r"[-+]?(0|[1-9][0-9]{0,18})")
NUMBER_LIKE = re.compile(r"[-+.]?[0-9][0-9_.:xXa-fA-F]*")
NOT_FINITE = re.compile(r"[-+]?\.?(nan|inf(inity)?)", re.IGNORECASE)
LARGEST_WHOLE = 2**63 - 1
LARGEST_EXACT = 2**53  # up to here a float holds every whole number
SWITCHES = {"yes": "true", "y": "true", "on": "true", "no": "false", "n": "false", "off": "false"}


@dataclass(frozen=True, eq=False)
class Kind:
    """What a field takes; stands in `Annotated[type, kind]`, where pydantic finds it."""

    wants: str  # as a noun: a whole number of at least 1
    read: Callable[[Any], Any]  # raises ValueError saying what was found and what is wanted
    json_schema: dict[str, Any]

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self.read)

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return dict(self.json_schema)


def refusal(value: object, wants: str, hint: str = "") -> ValueError:
    """The error for a `value` that is not what is wanted."""
    return ValueError(f"is {shown(value)}; it takes {wants}" + (f" ({hint})" if hint else ""))


def or_null(kind: Kind) -> Kind:
    """Another kind, or null: `null`, `~` or nothing at all."""

    def read(value: object) -> object:
        is_null = value is None or (isinstance(value, Plain) and value.is_null)
        return None if is_null else kind.read(value)

    return Kind(f"{kind.wants}, or null", read, {"anyOf": [kind.json_schema, {"type": "null"}]})


def or_auto(kind: Kind, word: str = "auto") -> Kind:
    """Another kind, or the word auto (or another one)."""
    wants = f"{kind.wants}, or {word}"

    def read(value: object) -> object:
        try:
            return word if value == word else kind.read(value)
        except ValueError:
            raise refusal(value, wants, _number_hint(value)) from None

    return Kind(wants, read, {"anyOf": [kind.json_schema, {"const": word}]})


def whole(least: int, most: int = LARGEST_WHOLE) -> Kind:
    """A whole number, `least` to `most`."""
    bounded = most != LARGEST_WHOLE
    wants = f"a whole number from {least} to {most}" if bounded else f"a whole number of at least {least}"

    def read(value: object) -> int:
        number = value if type(value) is int else _parse_whole(value)
        if number is None or not least <= number <= most:
            raise refusal(value, wants, _number_hint(value))
        return number

    return Kind(wants, read, {"type": "integer", "minimum": least, **({"maximum": most} if bounded else {})})


def _parse_whole(value: object) -> int | None:
    if not isinstance(value, Plain) or not NUMBER.fullmatch(value):
        return None
    if WHOLE.fullmatch(value):
        return int(value)
    number = float(value)
    return int(number) if abs(number) <= LARGEST_EXACT and number.is_integer() else None


def number(
    *, above: float | None = None, least: float = 0.0, below: float | None = None, most: float | None = None
) -> Kind:
    """A finite number greater than `above`, or from `least`, and less than `below`, or up to `most`."""
    wants = f"a number of at least {least:g}" if above is None else f"a number above {above:g}"
    schema = {"minimum": least} if above is None else {"exclusiveMinimum": above}
    if below is not None:
        wants += f" and below {below:g}"
        schema["exclusiveMaximum"] = below
    if most is not None:
        wants += f" and at most {most:g}"
        schema["maximum"] = most

    def read(value: object) -> float:
        plain = isinstance(value, Plain) and NUMBER.fullmatch(value)
        if not plain and (not isinstance(value, int | float) or isinstance(value, bool)):
            raise refusal(value, wants, _number_hint(value))
        parsed = float(value)  # type: ignore[arg-type]  # text that is a number, or a number
        enough = parsed >= least if above is None else parsed > above
        few = parsed < (float("inf") if below is None else below) and (most is None or parsed <= most)
        if not (enough and few):
            raise refusal(value, wants)
        return parsed

    return Kind(wants, read, {"type": "number", **schema})


def pair(kind: Kind) -> Kind:
    """A list of two of another kind."""
    wants = f"a list of two, each {kind.wants}"

    def read(value: object) -> tuple[object, object]:
        if not isinstance(value, tuple) or len(value) != 2:
            raise refusal(value, wants, f"it has {len(value)}" if isinstance(value, tuple) else "")
        try:
            return (kind.read(value[0]), kind.read(value[1]))
        except ValueError as error:
            raise ValueError(f"holds one that {error}") from None

    schema = {"type": "array", "items": kind.json_schema, "minItems": 2, "maxItems": 2}
    return Kind(wants, read, schema)


def whole_list(least: int) -> Kind:
    """A list of whole numbers, one or more of them."""
    kind = whole(least)
    wants = f"a list, each {kind.wants}"

    def read(value: object) -> tuple[int, ...]:
        if not isinstance(value, tuple) or not value:
            raise refusal(value, wants)
        try:
            return tuple(kind.read(item) for item in value)
        except ValueError as error:
            raise ValueError(f"holds one that {error}") from None

    return Kind(wants, read, {"type": "array", "items": kind.json_schema, "minItems": 1})


def one_or_more(kind: Kind) -> Kind:
    """One of another kind, or a list of them."""
    wants = f"{kind.wants}, or a list of such"

    def read(value: object) -> tuple[object, ...]:
        if not isinstance(value, tuple):
            return (kind.read(value),)
        if not value:
            raise refusal(value, wants)
        try:
            return tuple(kind.read(item) for item in value)
        except ValueError as error:
            raise ValueError(f"holds one that {error}") from None

    listed = {"type": "array", "items": kind.json_schema, "minItems": 1}
    return Kind(wants, read, {"anyOf": [kind.json_schema, listed]})


def or_list(kind: Kind, item: Kind) -> Kind:
    """Another kind, or a list of a third, one or more of them."""
    wants = f"{kind.wants}, or a list, each {item.wants}"

    def read(value: object) -> object:
        if not isinstance(value, tuple):
            try:
                return kind.read(value)
            except ValueError:
                raise refusal(value, wants, _number_hint(value)) from None
        if not value:
            raise refusal(value, wants)
        try:
            return tuple(item.read(each) for each in value)
        except ValueError as error:
            raise ValueError(f"holds one that {error}") from None

    listed = {"type": "array", "items": item.json_schema, "minItems": 1}
    return Kind(wants, read, {"anyOf": [kind.json_schema, listed]})


def arguments() -> Kind:
    """A mapping of argument names to values of any kind, as they are meant: see `meant`."""
    wants = "a mapping of argument names to values"

    def read(value: object) -> dict[str, Any]:
        if value is None or (isinstance(value, Plain) and value.is_null):
            return {}
        if not isinstance(value, dict):
            raise refusal(value, wants)
        for name in value:
            if not name.isidentifier():
                raise ValueError(f"has {shown(name)}, which is no name of an argument")
        return {str(name): meant(item) for name, item in value.items()}

    return Kind(wants, read, {"type": "object", "additionalProperties": True})


def meant(value: Any) -> Any:
    """Data of a tree as Python values: what stood without quotes as a number, true, false or null is that."""
    if isinstance(value, dict):
        return {str(key): meant(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [meant(item) for item in value]
    if not isinstance(value, Plain):
        return value
    if value.is_null:
        return None
    if value in ("true", "false"):
        return value == "true"
    if not NUMBER.fullmatch(value):
        return str(value)
    number = float(value)
    if abs(number) == float("inf"):
        raise refusal(value, "finite numbers")
    return int(value) if WHOLE.fullmatch(value) else number


def flag() -> Kind:
    """A switch: true or false."""
    wants = "true or false"

    def read(value: object) -> bool:
        if isinstance(value, bool):
            return value
        if isinstance(value, Plain) and value in ("true", "false"):
            return value == "true"
        word = str(value).lower()
        meant = word if word in ("true", "false") else SWITCHES.get(word)
        raise refusal(value, wants, f"write {meant}, without quotes" if meant else "")

    return Kind(wants, read, {"type": "boolean"})


def choice(*words: str) -> Kind:
    """One of a few words."""
    wants = " or ".join(filter(None, (", ".join(words[:-1]), words[-1])))

    def read(value: object) -> str:
        if not isinstance(value, str) or value not in words:
            raise refusal(value, wants)
        return str(value)

    return Kind(wants, read, {"enum": list(words)})


def text(wants: str, pattern: str = r"[^\0]+") -> Kind:
    """Text that `pattern` matches whole; null, `~` and nothing are refused. No path and no name holds a NUL."""

    def read(value: object) -> str:
        if not isinstance(value, str) or not re.fullmatch(pattern, value):
            raise refusal(value, wants)
        if isinstance(value, Plain) and value.is_null:
            raise refusal(value, wants, "in quotes it would be text")
        return str(value)

    # `010` or `no` without quotes is text here, and something else to a reader of YAML that knows no schema.
    return Kind(wants, read, {"type": ["string", "number", "boolean"]})


def free_text() -> Kind:
    """Any text as it was written, `null` and nothing included: an argument, or the value of a variable."""

    def read(value: object) -> str:
        if not isinstance(value, str):
            raise refusal(value, "text", "quote it")
        if "\0" in value:
            raise refusal(value, "text", "without a NUL")
        return str(value)

    return Kind("text", read, {"type": ["string", "number", "boolean", "null"]})


def _number_hint(value: object) -> str:
    """Why a `value` that looks like a number is not read as one."""
    if not isinstance(value, str):
        return ""
    if NUMBER.fullmatch(value):
        return "" if isinstance(value, Plain) else f"write {value} without quotes"
    if NOT_FINITE.fullmatch(value):
        return "a finite one"
    return "in decimal, as in JSON: 1000, 0.5, 1e-4" if NUMBER_LIKE.fullmatch(value) else ""
