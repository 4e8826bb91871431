"""`distperf import`: reads the files of another tool and puts together what they come to."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from distperf.recipe.launching import LAUNCHER_PREFIXES, LAUNCHER_SETS
from launcher import filters
from launcher.errors import UsageError
from launcher.hostfile import Host, load_hostfile
from launcher.imports import launchline
from launcher.imports.accelerate import from_accelerate
from launcher.imports.deepspeed import from_deepspeed
from launcher.imports.findings import Fate, Finding, Imported, Line, settled
from launcher.imports.trainer_args import filled_in

SECRET = re.compile(r"(^|_)(TOKEN|KEY|SECRET|PASSWORD|PASSWD|CREDENTIALS?)(_|$)", re.IGNORECASE)


@dataclass(frozen=True)
class Sources:
    """What is to be imported; at least one of config and words."""

    config: Path | None
    hostfile: Path | None = None
    env: Path | None = None
    ranks: int | None = None
    sets: tuple[str, ...] = ()
    words: tuple[str, ...] = ()

    @property
    def names(self) -> list[str]:
        """Of the files, and of the tool whose command line it is."""
        files = [path.name for path in (self.config, self.hostfile, self.env) if path is not None]
        return files + (["the command line"] if self.words else [])


def imported(sources: Sources) -> Imported:
    """Everything put together. Raises UsageError, HostfileError and BatchError."""
    line = launchline.read_line(sources.words) if sources.words else None
    named = sources.hostfile or (
        Path(line.options["hostfile"]) if line and "hostfile" in line.options else None
    )
    hosts = None if named is None else load_hostfile(named).hosts
    ranks = sources.ranks or (launchline.world(line, hosts) if line else _all_ranks(hosts))
    parts = Imported()
    if sources.config is not None:
        parts += _config(sources.config, line, ranks)
    if line is not None:
        parts += launchline.from_line(line, hosts, None if named is None else str(named))
        script = Imported(launchline.script_lines(line))
        parts = script + parts if sources.config is None else parts + _kept(line)
    elif named is not None:
        parts += Imported(command=("--hosts", str(named)))
    if sources.env is not None:
        parts += from_env_file(_text(sources.env), str(sources.env))
    if sources.config is None and line is None:
        raise UsageError("name a configuration, or give a command line after --")
    return settled(parts, _sets(sources.sets))


def _all_ranks(hosts: tuple[Host, ...] | None) -> int | None:
    if hosts is None or any(host.slots is None for host in hosts):
        return None
    return sum(len(host.slots or ()) for host in filters.apply_filters(hosts, None, None))


def _kept(line: launchline.LaunchLine) -> Imported:
    note = "to keep the script instead, import its command line alone: `distperf import -- ...`"
    return Imported(notes=(f"{line.script} is not part of this recipe, which trains by itself; {note}",))


def _config(path: Path, line: launchline.LaunchLine | None, ranks: int | None) -> Imported:
    if path.suffix in (".yaml", ".yml"):
        return from_accelerate(_yaml(path))
    filled = filled_in(line.args) if line is not None else {}
    return from_deepspeed(_json(path), filled, ranks)


def from_env_file(text: str, path: str) -> Imported:
    """`.deepspeed_env`: a NAME=VALUE a line. What looks like a secret is named, and its value is left out."""
    lines: list[Line] = []
    secrets: list[str] = []
    findings: list[Finding] = []
    for number, row in enumerate(text.splitlines(), 1):
        body = row.strip().removeprefix("export ")
        if not body or body.startswith("#"):
            continue
        name, equals, value = body.partition("=")
        if not equals or not name.isidentifier():
            raise UsageError(f"{path}:{number}: {row!r} is not NAME=VALUE")
        if name in LAUNCHER_SETS or name.startswith(LAUNCHER_PREFIXES):
            findings.append(Finding(name, value, Fate.NEEDLESS, "the launcher sets it"))
        elif SECRET.search(name):
            secrets.append(name)
            findings.append(
                Finding(name, "...", Fate.CARRIED, f"launch.env_secret: {name}, taken from your environment")
            )
        else:
            lines.append(Line(f"launch.env.{name}", value, ""))
            findings.append(Finding(name, value, Fate.CARRIED, f"launch.env.{name}: {value}"))
    if secrets:
        lines.append(
            Line("launch.env_secret", secrets, "set these where you launch; they are written nowhere")
        )
    return Imported(tuple(lines), tuple(findings))


def _sets(flags: Sequence[str]) -> dict[str, Any]:
    sets: dict[str, Any] = {}
    for flag in flags:
        key, equals, value = flag.partition("=")
        if not equals or not key:
            raise UsageError(f"--set {flag!r}: it takes key=value: --set train.steps=100")
        sets[key] = yaml.safe_load(value)
    return sets


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: not UTF-8 ({error.reason})") from None


def _json(path: Path) -> dict[str, Any]:
    text = _text(path)
    try:
        data = json.loads(text, object_pairs_hook=lambda pairs: _without_repeats(pairs, path))
    except json.JSONDecodeError as error:
        raise UsageError(f"{path}:{error.lineno}:{error.colno}: not JSON: {error.msg}") from None
    if not isinstance(data, dict):
        raise UsageError(f"{path}: a DeepSpeed configuration is a JSON object")
    return data


def _without_repeats(pairs: list[tuple[str, Any]], path: Path) -> dict[str, Any]:
    keys = [key for key, _ in pairs]
    if again := next((key for key in keys if keys.count(key) > 1), None):
        raise UsageError(f"{path}: {again!r} is given twice; DeepSpeed refuses that too")
    return dict(pairs)


def _yaml(path: Path) -> Mapping[str, Any]:
    try:
        data = yaml.safe_load(_text(path))
    except yaml.YAMLError as error:
        raise UsageError(f"{path}: not YAML: {error}") from None
    if (
        not isinstance(data, dict)
        or not {"distributed_type", "compute_environment", "num_processes"} & data.keys()
    ):
        raise UsageError(
            f"{path}: not a configuration of Accelerate's: it has no distributed_type or num_processes"
        )
    return data
