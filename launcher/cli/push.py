"""push: a virtual environment on every node."""

from __future__ import annotations

import sys
from pathlib import Path

import typer

from distperf import contract
from launcher.cli.run import Exclude, Hosts, Include, Nproc, SshOption


def register(app: typer.Typer) -> None:
    """Add this group's command."""
    app.command("push")(push)


def push(
    what: list[Path] = typer.Argument(
        ..., metavar="FILE...", help="Requirement files (locks) and wheels of this machine."
    ),
    wheels: Path | None = typer.Option(
        None,
        "--find-links",
        metavar="DIR",
        help="A folder of wheels, sent along: nodes install from it and no index.",
    ),
    python: str = typer.Option(
        "python3", "--python", metavar="PROGRAM", help="Interpreter that makes it on the nodes."
    ),
    hosts: Path | None = Hosts,
    include: str | None = Include,
    exclude: str | None = Exclude,
    nproc: int | None = Nproc,
    ssh_options: list[str] | None = SshOption,
) -> None:
    """Make the same virtual environment on every node, from requirements and wheels; nothing where it is there."""
    from launcher import environment, pushing
    from launcher.launch import make_transport
    from launcher.planning import Request, parse

    made = pushing.environment(what, wheels, python)
    request = Request(
        script="push",
        hosts=hosts,
        include=include,
        exclude=exclude,
        nproc=nproc,
        ssh_options=tuple(ssh_options or ()),
    )
    parsed = parse(request)
    pushed, versions = pushing.push(
        made, parsed.hosts, make_transport(parsed), lambda text: print(text, file=sys.stderr)
    )
    print("\n".join(environment.table(pushed, versions)))
    failed = [each for each in pushed if each.why is not None]
    if not failed:
        print(f"in a recipe: launch: {{setup: [{environment.ACTIVATE}]}}", file=sys.stderr)
    raise typer.Exit(contract.EXIT_UNREACHABLE if failed else contract.EXIT_OK)
