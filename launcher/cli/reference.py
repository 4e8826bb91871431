"""The reference page of the command line, made from the commands: `python -m launcher.cli.reference > docs/cli.md`."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from typing import Any

import typer

from launcher.cli.main import app

INTRODUCTION = """# The command line

Made from the commands themselves by `python -m launcher.cli.reference`; `distperf COMMAND --help` says the same.

Text for people goes to stderr, what a script would read to stdout; `--json` output carries a `schema` number. RUN is a
run's id, the beginning of one, a run's folder, or nothing: the latest in `./runs`. Exit codes are those of the
[README](../README.md#exit-codes-and-what-a-run-leaves). `--debug`, before the command, shows a traceback with every
error.
"""


def reference() -> str:
    """The page, in Markdown."""
    root: Any = typer.main.get_command(app)
    sections = list(_sections(root, "distperf"))
    names = [f"- [`{name}`](#{_anchor(name)}): {_first_line(command)}" for name, command in sections]
    pages = [_section(name, command) for name, command in sections]
    return "\n".join((INTRODUCTION, *names, "", *pages))


def _sections(group: Any, path: str) -> Iterator[tuple[str, Any]]:
    for name, command in sorted(group.commands.items()):
        if command.hidden:
            continue
        whole = f"{path} {name}"
        if hasattr(command, "commands"):
            yield from _sections(command, whole)
        else:
            yield whole, command


def _anchor(name: str) -> str:
    return name.replace(" ", "-")


def _first_line(command: Any) -> str:
    return str(command.help or "").strip().split("\n")[0]


def _section(name: str, command: Any) -> str:
    with command.make_context(name, [], resilient_parsing=True) as context:
        usage = " ".join((name, *command.collect_usage_pieces(context)))
        rows = [record for param in command.params if (record := param.get_help_record(context))]
    lines = [f"## {name}", "", "```", usage, "```", "", _text(command.help or "")]
    if rows:
        lines += ["", "| argument or option | meaning |", "|---|---|"]
        lines += [f"| `{_cell(what)}` | {_cell(meaning)} |" for what, meaning in rows]
    return "\n".join(lines) + "\n"


def _text(help_text: str) -> str:
    """Paragraphs, each in a line: how they were wrapped in the source is of no interest."""
    paragraphs = re.split(r"\n\s*\n", help_text.strip())
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    sys.stdout.write(reference())
