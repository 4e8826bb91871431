"""What `distperf push` makes on a node: a virtual environment, named by what goes into it. Pure.

~/.cache/distperf/envs/KEY      (XDG_CACHE_HOME) with a file `made` once all is installed
~/.cache/distperf/env           a link to the newest
"""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from launcher.logs import printable_lines
from launcher.sync.code import CodeFile

LIMIT_S = 3600.0  # to make it: torch from an index over a slow link
WHEELS = "wheels"  # folder of the files that pip may take, and of nothing else where there are any
ACTIVATE = "source ~/.cache/distperf/env/bin/activate"
SHOWN_LINES = 12  # of what pip said last

# Hosts may share a home: one makes it, the others wait and find it there.
_PREPARE = """\
cache=${XDG_CACHE_HOME:-$HOME/.cache}/distperf; export PUSHED_ENV=$cache/envs/%s PUSHED=there
mkdir -p "$cache/envs"; exec {lock}>"$PUSHED_ENV.lock"; flock $lock"""
_MAKE = """\
[ -e "$PUSHED_ENV/made" ] || {
  PUSHED=made; rm -rf "$PUSHED_ENV"; %s -m venv "$PUSHED_ENV" &&
  "$PUSHED_ENV/bin/python" -m pip install --no-input --disable-pip-version-check --no-cache-dir -q %s &&
  touch "$PUSHED_ENV/made"
}"""
_LINK = 'ln -sfn "$PUSHED_ENV" "$cache/env"'


@dataclass(frozen=True)
class Environment:
    """What is installed: requirement files and wheels by name, with `python`; only from `WHEELS` where `offline`."""

    python: str
    requirements: tuple[CodeFile, ...]
    packages: tuple[CodeFile, ...]
    found: tuple[CodeFile, ...]  # that pip may take what is required from
    offline: bool

    @property
    def files(self) -> tuple[CodeFile, ...]:
        """Everything that goes along, each path once."""
        return tuple({file.path: file for file in (*self.requirements, *self.packages, *self.found)}.values())

    @property
    def key(self) -> str:
        """Equal for equal environments."""
        parts = [
            self.python,
            self.offline,
            *(sorted((f.path, f.digest) for f in files) for files in self._parts),
        ]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]

    @property
    def _parts(self) -> tuple[tuple[CodeFile, ...], ...]:
        return self.requirements, self.packages, self.found

    def lines(self) -> list[str]:
        """Shell lines that make it, where it is not there."""
        options = ["--no-index", "--find-links", WHEELS] if self.offline else []
        for file in self.requirements:
            options += ["-r", file.path]
        options += [f"./{file.path}" for file in self.packages]
        return [_PREPARE % self.key, _MAKE % (shlex.quote(self.python), shlex.join(options)), _LINK]


@dataclass(frozen=True)
class Pushed:
    """What became of it on a host: `made` or `there`, its folder; or why not."""

    host: str
    how: str
    folder: str
    seconds: float
    why: str | None = None


def outcome(host: str, answer: Mapping[str, Any]) -> Pushed:
    """Of the lines on a host (launcher.agent.setup)."""
    env, said = answer["env"], printable_lines(answer["output"])[-SHOWN_LINES:]
    if env is not None and answer["status"] == 0:
        return Pushed(host, env["PUSHED"], env["PUSHED_ENV"], answer["seconds"])
    how = f"not done after {LIMIT_S:.0f} s" if answer["status"] == "late" else "pip or venv failed"
    return Pushed(host, "FAIL", "", answer["seconds"], "".join((how, *(f"\n    | {line}" for line in said))))


def table(pushed: Sequence[Pushed], versions: Mapping[str, Mapping[str, str | None]]) -> list[str]:
    """A row a host: how, in how many seconds, which versions it has; with the reason under it where it failed."""
    rows = [("host", "", "seconds", *(next(iter(versions.values()), {})))]
    whys: list[str | None] = [None]
    for each in pushed:
        found = [version or "-" for version in versions.get(each.host, {}).values()]
        rows.append((each.host, each.how, f"{each.seconds:.1f}", *found))
        whys.append(each.why)
    widths = [
        max((len(row[at]) for row in rows if at < len(row)), default=0) for at in range(max(map(len, rows)))
    ]
    lines = []
    for row, why in zip(rows, whys, strict=True):
        lines.append("  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=False)).rstrip())
        lines += f"  {why}".split("\n") if why else []
    return lines
