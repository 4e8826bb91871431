"""Hostfile text -> Hostfile.

    file    := { line end-of-line }              LF, CRLF or CR; a BOM or no last end-of-line is fine
    line    := [ host { blanks option } ] [ "#" comment ]    a comment starts the line or follows a blank
    host    := [ user "@" ] ( nodelist | ipv6 | "[" ipv6 "]" )    node[01-16,20]; with a ":" it is an address
    option  := key "=" value                     no blanks around "=", each key once

    slots=4         ranks this host takes, as slots 0..3; without slots= and gpus= the host is asked
    gpus=2,3        physical device of each slot, in order (0-3 too); alone it means as many slots
    port=2222       SSH port
    python=/x/bin/python    interpreter of the ranks: a name or a full path
    workdir=/data   folder of the ranks
    max_slots=8     known to other tools; ignored, with one warning

Lines are in node order, and a place comes once. A place is a whole name and a port: `a` and `u@a` are one,
`a` and `a port=2222` are two, and so are `worker.1.example` and `worker.2.example`. An IPv6 address loses its
brackets and is compressed, so that all its spellings are one name. All problems are told together.
"""

from __future__ import annotations

import difflib
import ipaddress
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from launcher.errors import HostfileError, UsageError
from launcher.nodeset import expand, expand_numbers, fold, fold_numbers

MAX_PROBLEMS = 50  # shown of one file; a file with more is no hostfile

_END_OF_LINE = re.compile(r"\r\n|\r|\n")
_COMMENT = re.compile(r"(^|[ \t])#.*")
_SPACED_EQUALS = re.compile(r"[ \t]+=[ \t]*|=[ \t]+")
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_HOST_COLON_NUMBER = re.compile(r"(\[.*\]|[^:]*):([0-9]+)")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_NAME_RULE = "letters, digits and '_.-' only, and no '.' or '-' at the start"
_IPV6 = re.compile(r"\[?([0-9A-Fa-f:.]+(%[A-Za-z0-9_.-]+)?)\]?")

# What the value of an option looks like, and how to say so. `python` becomes part of a remote command line:
# of these characters it is one plain word to any shell, and never an option.
_VALUES = {
    "slots": (r"[1-9][0-9]{0,3}", "a number from 1 to 9999; leave out a host that takes no rank"),
    "gpus": (r"[0-9][0-9,-]*", "device numbers such as 2,3 or 0-3"),
    "port": (r"[1-9][0-9]{0,4}", "a number from 1 to 65535"),
    "python": (r"/[A-Za-z0-9_./+-]+|[A-Za-z0-9_][A-Za-z0-9_.+-]*", "a name or full path in [A-Za-z0-9_./+-]"),
    "workdir": (r".+", "a folder"),
    "max_slots": (r".*", "anything"),
}


@dataclass(frozen=True)
class Host:
    """One host of the run, in hostfile order. Its identity is the whole `name` together with `port`."""

    name: str
    slots: tuple[int, ...] | None  # ids of the slots to use; None: ask the host how many devices it has
    user: str | None = None
    port: int | None = None
    devices: tuple[int, ...] | None = None  # `gpus=`: physical device of each of `slots`, in the same order
    python: str | None = None
    workdir: str | None = None
    line: int = 0  # in the hostfile, from 1; 0 where there is no file


@dataclass(frozen=True)
class Hostfile:
    """All hosts of a file, ranges expanded, and what was ignored."""

    path: str
    hosts: tuple[Host, ...]
    warnings: tuple[str, ...] = ()
    text: str | None = None  # None: no file, this machine


def load_hostfile(path: str | os.PathLike[str]) -> Hostfile:
    """Read and parse the hostfile at `path`. A file that cannot be used is an error, never a local run.

    Raises:
        HostfileError: not readable, not UTF-8, or wrong in any line.
    """
    try:
        text = Path(path).read_bytes().decode("utf-8")
    except OSError as error:
        remedy = "Correct the path, or name no hostfile to use this machine."
        raise HostfileError(f"cannot read hostfile {path}: {error.strerror}. {remedy}") from error
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise HostfileError(f"{path}:{line}: not UTF-8 ({error.reason}). Save the file as UTF-8.") from error
    return parse_hostfile(text, str(path))


def local_hostfile(nproc: int | None) -> Hostfile:
    """Hostfile of this machine alone, with `nproc` slots; None: as many as it has devices."""
    if nproc is not None and nproc < 1:
        raise UsageError(f"cannot run {nproc} ranks on this machine; give 1 or more")
    slots = None if nproc is None else tuple(range(nproc))
    return Hostfile(path="(this machine)", hosts=(Host(name="localhost", slots=slots),))


def parse_hostfile(text: str, path: str) -> Hostfile:
    """Hosts that `text` names; `path` is for messages only.

    Raises:
        HostfileError: every problem as `path:line: what and remedy`, with the text of the line under it.
    """
    places: dict[tuple[str, int | None], Host] = {}
    problems: list[str] = []
    ignored: list[int] = []
    for number, body in _lines(text):
        found: list[str] = []
        hosts = _parse_line(body, number, found)
        found += _add_places(places, hosts)
        problems += [f"{path}:{number}: {problem}\n    {_shown(body)}" for problem in found]
        if re.search(r"[ \t]max_slots=", body):
            ignored.append(number)
    if len(problems) > MAX_PROBLEMS:
        problems[MAX_PROBLEMS:] = [f"{path}: and {len(problems) - MAX_PROBLEMS} problems more"]
    if problems:
        raise HostfileError("\n".join(problems))
    if not places:
        raise HostfileError(f"{path}: no host in this file. Write one host a line, such as 'gpu-a slots=8'.")
    warning = f"{path}: max_slots= is ignored (line {fold_numbers(ignored)}); slots= is what counts"
    return Hostfile(path, tuple(places.values()), (warning,) if ignored else (), text)


def host_names(text: str) -> tuple[str, ...]:
    """Names that `a`, `node[01-16,20]`, `2001:db8::1` or `[2001:db8::1]` stands for. Raises HostfileError."""
    if ":" in text:
        return (_ipv6_name(text),)
    names = expand(text)
    for name in names:
        if not _NAME.fullmatch(name):
            raise HostfileError(f"{name!r} is not a host name: {_NAME_RULE}")
    return names


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Number and body of each line that holds more than blanks and a comment."""
    for number, line in enumerate(_END_OF_LINE.split(text.removeprefix("\ufeff")), start=1):
        body = _COMMENT.sub("", line).strip(" \t")
        if body:
            yield number, body


def _parse_line(body: str, number: int, problems: list[str]) -> list[Host]:
    """Hosts of one line; what is wrong with it is added to `problems`."""
    word, *rest = re.split(r"[ \t]+", body)
    if foreign := _foreign(body, word, rest):
        problems.append(foreign)
        return []
    user, names = _parse_host(word, problems)
    options = _parse_options(rest, problems)
    slots, devices = _parse_slots(options.get("slots"), options.get("gpus"), problems)
    port = int(options["port"]) if "port" in options else None
    python, workdir = options.get("python"), options.get("workdir")
    return [Host(name, slots, user, port, devices, python, workdir, number) for name in names]


def _foreign(body: str, word: str, rest: list[str]) -> str | None:
    """Tells what is not this grammar but another tool's, or no host line at all, with the right spelling."""
    if control := _CONTROL.search(body):
        return f"control character {control[0]!r}; a hostfile is plain text"
    if body.startswith(("//", "/*")):
        return "comments start with '#'"
    if word.startswith(tuple(f"{key}=" for key in _VALUES)):
        return "the host is missing; a line is one host and its options"
    if _SPACED_EQUALS.search(body):
        correct = _SPACED_EQUALS.sub("=", body)
        return f"no blanks around '=': write {correct!r}"
    if rest and re.fullmatch("[0-9]+", rest[0]):
        correct = f"{word} slots={rest[0]}"
        return f"a number needs its key: write {correct!r}"
    if stray := next((each for each in rest if "=" not in each), None):
        return f"{stray!r} is not an option; a line is one host and key=value options, not a command"
    if match := _HOST_COLON_NUMBER.fullmatch(word):
        slots, port = (f"{match[1]} {key}={match[2]}" for key in ("slots", "port"))
        return f"{word!r} can mean two things: write {slots!r} or {port!r}"
    return None


def _parse_host(word: str, problems: list[str]) -> tuple[str | None, tuple[str, ...]]:
    *login, nodelist = word.split("@", maxsplit=1)
    user = login[0] if login else None
    if user is not None and not _NAME.fullmatch(user):
        problems.append(f"{user!r} is not a user name: {_NAME_RULE}")
    try:
        return user, host_names(nodelist)
    except HostfileError as error:
        problems.append(str(error))
        return user, ()


def _parse_options(words: list[str], problems: list[str]) -> dict[str, str]:
    """Options by key, as text that has the right form."""
    options: dict[str, str] = {}
    keys = [word.partition("=")[0] for word in words]
    for key, word in zip(keys, words, strict=True):
        value = word.removeprefix(f"{key}=")
        if key not in _VALUES:
            near = difflib.get_close_matches(key.lower(), _VALUES, n=1)
            correct = f"{near[0]}={value}" if near else None
            hint = f"did you mean {correct!r}?" if correct else f"options are {', '.join(_VALUES)}"
            problems.append(f"unknown option {word!r}; {hint}")
            continue
        form, meaning = _VALUES[key]
        if not re.fullmatch(form, value) or (key == "port" and int(value) > 65535):
            problems.append(f"{word!r}: {key} must be {meaning}")
        else:
            options[key] = value
    problems += [f"{key}= is given twice" for key in _VALUES if keys.count(key) > 1]
    return options


def _parse_slots(
    slots: str | None, gpus: str | None, problems: list[str]
) -> tuple[tuple[int, ...] | None, tuple[int, ...] | None]:
    """Slot ids (None: to be asked for) and, where `gpus` is given, their devices."""
    if gpus is None:
        return (None if slots is None else tuple(range(int(slots)))), None
    try:
        devices = expand_numbers(gpus)
    except HostfileError as error:
        problems.append(f"gpus={error}")
        return None, None
    if len(set(devices)) < len(devices):
        problems.append(f"gpus={gpus} names a device twice")
    if slots is not None and int(slots) != len(devices):
        problems.append(f"slots={slots}, but gpus={gpus} names {len(devices)}; leave slots= out")
    return tuple(range(len(devices))), devices


def _add_places(places: dict[tuple[str, int | None], Host], hosts: list[Host]) -> list[str]:
    """Add the places of one line; returns a problem for each line that holds some of them already."""
    again: dict[int, list[str]] = {}
    for host in hosts:
        first = places.setdefault((host.name, host.port), host)
        if first is not host:
            again.setdefault(first.line, []).append(host.name)
    return [f"{fold(names)} is already on line {line}; name each host once" for line, names in again.items()]


def _ipv6_name(text: str) -> str:
    match = _IPV6.fullmatch(text)
    try:
        if match and text.startswith("[") == text.endswith("]"):
            return str(ipaddress.IPv6Address(match[1]))
    except ValueError:
        pass
    raise HostfileError(f"{text!r} is neither a host name nor an IPv6 address such as [2001:db8::1]")


def _shown(body: str) -> str:
    """The line for a message: no control characters for the terminal, no endless text."""
    printable = body if body.replace("\t", " ").isprintable() else ascii(body)[1:-1]
    return printable if len(printable) <= 200 else f"{printable[:200]}..."
