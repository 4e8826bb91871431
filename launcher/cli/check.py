"""check: what every node has, and lacks, before a run."""

from __future__ import annotations

import json
from pathlib import Path

import typer

from launcher.cli.run import AsJson, Exclude, Hosts, Include, Nproc, Set, SshOption


def register(app: typer.Typer) -> None:
    """Add this group's command."""
    app.command("check")(check)


def check(
    recipe: Path | None = typer.Argument(
        None, metavar="RECIPE", help="The recipe; without one, what a script needs is checked."
    ),
    hosts: Path | None = Hosts,
    include: str | None = Include,
    exclude: str | None = Exclude,
    sets: list[str] | None = Set,
    nproc: int | None = Nproc,
    ssh_options: list[str] | None = SshOption,
    as_json: bool = AsJson,
) -> None:
    """Pre-flight of every node: reach, python, versions, disks, clock, devices, network, leftovers."""
    from launcher import checktable
    from launcher.checking import check as run
    from launcher.planning import Request, parse

    request = Request(
        recipe=recipe,
        script=None if recipe else "script",
        hosts=hosts,
        include=include,
        exclude=exclude,
        sets=tuple(sets or ()),
        nproc=nproc,
        ssh_options=tuple(ssh_options or ()),
    )
    report = run(parse(request))
    if as_json:
        print(json.dumps(checktable.as_json(report), indent=1))
    else:
        print("\n".join(checktable.as_text(report)))
    raise typer.Exit(report.exit_code)
