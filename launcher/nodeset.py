"""Nodelists: `rack[0-1]n[01-02]` <-> rack0n01, rack0n02, rack1n01, rack1n02.

    nodelist := name { "," name }                       a comma inside brackets does not split
    name     := 1+ ( text | "[" range { "," range } "]" )
    range    := digits [ "-" digits ]                   padded to the width of the low bound: [08-11]

The leftmost bracket group varies slowest and repeats are kept, as in Slurm, whose lists these are. No steps,
wildcards or set operators. What a name may consist of is not decided here (see hostfile.py).
"""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from launcher.errors import HostfileError

MAX_HOSTS = 65536  # in one range and in one list; Slurm's own limit

_TOKEN = re.compile(r"(?P<comma>,)|\[(?P<group>[^\[\]]*)\]|(?P<text>[^\[\],]+)|(?P<stray>[\[\]])")
_RANGE = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?")
_NUMBER = re.compile(r"([0-9]{1,18})")  # splits a name into text, number, text, number, ..., text


@dataclass(frozen=True)
class _Range:
    """The numbers low..high, both included, written with at least `width` digits."""

    low: int
    high: int
    width: int

    @property
    def size(self) -> int:
        return self.high - self.low + 1

    def texts(self) -> Iterator[str]:
        return (str(number).zfill(self.width) for number in range(self.low, self.high + 1))


_Pattern = list[str | list[_Range]]  # one name of a nodelist: plain text and bracket groups, in order
_Box = tuple[tuple[str, ...], ...]  # many names at once: what may stand at each place of the split


def expand(text: str) -> tuple[str, ...]:
    """Every name that `text` stands for, in its order. Limits are checked before anything is expanded.

    Raises:
        HostfileError: malformed or too large; the message holds the position in `text`.
    """
    patterns = _parse(text)
    if sum(map(_count, patterns)) > MAX_HOSTS:
        raise HostfileError(f"nodelist {text!r} stands for more than {MAX_HOSTS} hosts")
    return tuple("".join(name) for pattern in patterns for name in itertools.product(*map(_choices, pattern)))


def expand_numbers(text: str) -> tuple[int, ...]:
    """The numbers of `0,2-5` as written: order and repeats kept. Raises HostfileError."""
    ranges = _parse_ranges(text, 0, len(text))
    if sum(each.size for each in ranges) > MAX_HOSTS:
        raise HostfileError(f"{text!r} stands for more than {MAX_HOSTS} numbers")
    return tuple(number for each in ranges for number in range(each.low, each.high + 1))


def expand_ranks(text: str) -> tuple[int, ...]:
    """The set of ranks that `0,2-5` names, ascending. Raises HostfileError."""
    return tuple(sorted(set(expand_numbers(text))))


def fold(names: Iterable[str]) -> str:
    """The shortest nodelist we know for `names`, in natural order: `node[01-03,07]`.

    Nothing is lost: `expand` gives back the same names, each as often. (A name holds no comma or bracket.)
    """
    seen: Counter[str] = Counter()
    groups: dict[tuple[int, int], list[list[str]]] = {}  # distinct names that have as many numbers
    for name in names:
        parts = _NUMBER.split(name)
        groups.setdefault((seen[name], len(parts)), []).append(parts)
        seen[name] += 1
    boxes = [box for group in groups.values() for box in _merge(group)]
    boxes.sort(key=lambda box: _natural([choices[0] for choices in box]))
    return ",".join("".join(map(_bracket, box)) for box in boxes)


def fold_numbers(numbers: Iterable[int]) -> str:
    """The set of `numbers`, as `expand_numbers` reads it: `0,2-5`."""
    return fold(str(number) for number in set(numbers)).strip("[]")


def _parse(text: str) -> list[_Pattern]:
    patterns: list[_Pattern] = []
    pattern: _Pattern = []
    for token in _TOKEN.finditer(text + ","):  # the added comma ends the last name
        if token["text"]:
            pattern.append(token["text"])
        elif token["stray"]:
            what = "this '[' is not closed" if token["stray"] == "[" else "this ']' closes nothing"
            raise _error(text, token.start(), f"{what} (brackets do not nest)")
        elif token["comma"]:
            if not pattern:
                raise _error(text, token.start(), "a name is missing")
            patterns.append(pattern)
            pattern = []
        else:
            pattern.append(_parse_ranges(text, *token.span("group")))
    return patterns


def _parse_ranges(text: str, start: int, end: int) -> list[_Range]:
    """Ranges in `text[start:end]`; the whole text is there for the messages."""
    ranges = []
    for item in text[start:end].split(","):
        ranges.append(_parse_range(item, text, start))
        start += len(item) + 1
    return ranges


def _parse_range(item: str, text: str, position: int) -> _Range:
    match = _RANGE.fullmatch(item)
    if match is None:
        what = f"{item!r} is not a number or a range such as 01-16" if item else "a number is missing"
        raise _error(text, position, what)
    low, high = match[1], match[2] or match[1]
    found = _Range(int(low), int(high), len(low))
    if found.size < 1:
        raise _error(text, position, f"range {item} runs backwards; write {high}-{low}")
    if found.size > MAX_HOSTS:
        raise _error(text, position, f"range {item} is larger than {MAX_HOSTS}")
    return found


def _error(text: str, position: int, what: str) -> HostfileError:
    return HostfileError(f"{text!r}, character {position + 1}: {what}")


def _count(pattern: _Pattern) -> int:
    return math.prod(sum(each.size for each in part) for part in pattern if not isinstance(part, str))


def _choices(part: str | list[_Range]) -> Iterable[str]:
    return (part,) if isinstance(part, str) else itertools.chain.from_iterable(each.texts() for each in part)


def _natural(parts: list[str]) -> list[str | tuple[int, str]]:
    """Sort key of a split name: numbers by value, `01` before `1`."""
    return [(int(part), part) if place % 2 else part for place, part in enumerate(parts)]


def _merge(names: list[list[str]]) -> list[_Box]:
    """Merge what differs in the last number only, then what differs in the one before, and so on."""
    boxes: list[_Box] = [tuple((part,) for part in parts) for parts in sorted(names, key=_natural)]
    for place in range(len(names[0]) - 2, 0, -2):
        merged: dict[tuple[_Box, _Box], list[str]] = {}
        for box in boxes:
            merged.setdefault((box[:place], box[place + 1 :]), []).extend(box[place])
        boxes = [(*before, tuple(numbers), *after) for (before, after), numbers in merged.items()]
    return boxes


def _bracket(choices: tuple[str, ...]) -> str:
    """`("01", "02", "03", "07")` -> `[01-03,07]`; a single choice needs no brackets."""
    if len(choices) == 1:
        return choices[0]
    left, runs = dict.fromkeys(choices), []
    while left:
        low = high = next(iter(left))
        following = low
        while following in left:
            del left[following]
            high = following
            following = str(int(following) + 1).zfill(len(low))
        runs.append(low if low == high else f"{low}-{high}")
    return f"[{','.join(runs)}]"
