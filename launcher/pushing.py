"""`distperf push`: the same virtual environment on every node, all at once."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from launcher.environment import LIMIT_S, WHEELS, Environment, Pushed, outcome
from launcher.errors import TransportError, UsageError
from launcher.hostfile import Host
from launcher.nodes import Nodes, Unanswered
from launcher.plan import label
from launcher.sync.code import Code, CodeFile
from launcher.sync.collect import read_file
from launcher.sync.send import Carrier
from launcher.transport.base import Transport

MODULES = ("distperf", "torch")
Versions = dict[str, dict[str, str | None]]


def environment(what: list[Path], wheels: Path | None, python: str) -> Environment:
    """From files of this machine: wheels and requirement files; `wheels`: a folder that pip takes all else from.

    Raises UsageError where one cannot be read.
    """
    packages = [path for path in what if path.suffix == ".whl"]
    requirements = [path for path in what if path.suffix != ".whl"]
    try:
        found = [] if wheels is None else sorted(path for path in wheels.iterdir() if path.is_file())
        return Environment(
            python=python,
            requirements=tuple(_file(path, f"{at}-{path.name}") for at, path in enumerate(requirements)),
            packages=tuple(_file(path, f"{WHEELS}/{path.name}") for path in packages),
            found=tuple(_file(path, f"{WHEELS}/{path.name}") for path in found),
            offline=wheels is not None,
        )
    except OSError as error:
        raise UsageError(f"cannot read {error.filename}: {error.strerror}") from None


def _file(origin: Path, path: str) -> CodeFile:
    return read_file(str(origin.absolute()), path)


def push(
    made: Environment, hosts: tuple[Host, ...], transport: Transport, say: Callable[[str], None]
) -> tuple[list[Pushed], Versions]:
    """Make it on all hosts; what became of it on each, and which versions are in it where it is there."""
    carrier = Carrier(Code("", made.files, False, f"push-{secrets.token_hex(8)}"))
    nodes = Nodes(transport, carrier)
    try:
        refused = nodes.open_each(hosts)
        say(carrier.told(len(hosts) - len(refused)))
        found = _make(nodes, made, [host for host in hosts if label(host) not in refused])
        pushed = [_refused(label(host), refused) or found[label(host)] for host in hosts]
        return pushed, _versions(nodes, [each for each in pushed if each.why is None])
    finally:
        nodes.close()


def _refused(host: str, refused: Mapping[str, TransportError]) -> Pushed | None:
    return Pushed(host, "FAIL", "", 0.0, refused[host].reason) if host in refused else None


def _make(nodes: Nodes, made: Environment, hosts: list[Host]) -> dict[str, Pushed]:
    lines, token = made.lines(), f"setup-{secrets.token_hex(8)}"
    questions: dict[str, tuple[str, dict[str, Any]]] = {}
    for number, host in enumerate(map(label, hosts)):
        args = {
            "token": f"{token}-{number}",
            "lines": lines,
            "env": {},
            "cwd": nodes.folders[host],
            "limit_s": LIMIT_S,
        }
        questions[host] = ("setup", args)
    answers = nodes.gather(questions, LIMIT_S + 60)
    return {
        host: Pushed(host, "FAIL", "", 0.0, answer.why)
        if isinstance(answer, Unanswered)
        else outcome(host, answer)
        for host, answer in answers.items()
    }


def _versions(nodes: Nodes, pushed: list[Pushed]) -> Versions:
    questions = {
        each.host: (
            "python",
            {"candidates": [f"{each.folder}/bin/python"], "workdir": each.folder, "modules": list(MODULES)},
        )
        for each in pushed
    }
    answers = nodes.gather(questions)
    names = ("python", *MODULES)
    return {
        host: {name: answer["versions"].get(name) for name in names}
        for host, answer in answers.items()
        if not isinstance(answer, Unanswered)
    }
