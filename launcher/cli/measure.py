"""bench, tune: what hosts can do, and which way to run a recipe is the fastest there, measured."""

from __future__ import annotations

import json
from pathlib import Path

import typer

from distperf import contract
from launcher.cli.run import AsJson, Exclude, Hosts, Include, Nproc, Set, SshOption, say
from launcher.errors import UsageError

PARTS = ("matmul", "comm", "disk")


def register(app: typer.Typer) -> None:
    """Add this group's commands."""
    app.command("bench")(bench)
    app.command("tune")(tune)


def bench(
    parts: list[str] | None = typer.Argument(
        None, metavar="[comm] [disk] [matmul]", help="What to measure; without a word, all of it."
    ),
    hosts: Path | None = Hosts,
    include: str | None = Include,
    exclude: str | None = Exclude,
    recipe: Path | None = typer.Option(
        None,
        "--recipe",
        metavar="FILE",
        help="Its launch section prepares the nodes; its offload.path is measured.",
    ),
    path: list[str] | None = typer.Option(
        None,
        "--path",
        metavar="DIR",
        help="A folder on a drive, on every node, for disk; may be given often.",
    ),
    sets: list[str] | None = Set,
    nproc: int | None = Nproc,
    ssh_options: list[str] | None = SshOption,
    as_json: bool = AsJson,
) -> None:
    """Measure arithmetic, memory, links and drives of all hosts, name what is slow, and keep it for `plan`."""
    from launcher.bar import Bar
    from launcher.bench import table
    from launcher.bench.run import bench as run
    from launcher.planning import Request, parse

    unknown = [part for part in parts or () if part not in PARTS]
    if unknown:
        raise UsageError(f"bench measures {', '.join(PARTS)}, not {unknown[0]!r}")
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
    parsed = parse(request)
    drives = tuple(path or parsed.recipe.offload.path or ())
    if not drives and "disk" in (parts or ()):
        raise UsageError("disk: name a folder on each drive with --path, or a recipe with offload.path")
    if not drives and not parts:
        say("disk is not measured: --path names a folder on a drive")
    with Bar() as bar:
        measured = run(parsed, tuple(parts or PARTS), drives, lambda share: bar.show(share, "measuring"))
    if as_json:
        print(json.dumps(table.as_json(measured), indent=1))
    else:
        print("\n".join(table.as_text(measured)))


def tune(
    recipe: Path = typer.Argument(..., metavar="RECIPE", help="The recipe (YAML)."),
    hosts: Path | None = Hosts,
    include: str | None = Include,
    exclude: str | None = Exclude,
    sets: list[str] | None = Set,
    nproc: int | None = Nproc,
    trials: int = typer.Option(8, "--trials", min=1, metavar="N", help="Ways to run it that are tried."),
    steps: int = typer.Option(
        8, "--steps", min=3, metavar="N", help="Steps of each; the first two do not count."
    ),
    folder: Path | None = typer.Option(
        None,
        "--dir",
        metavar="DIR",
        help="Where trials and the best recipe go; default tune/<recipe's file>.",
    ),
    ssh_options: list[str] | None = SshOption,
    as_json: bool = AsJson,
) -> None:
    """Try the plan's best candidates for a few steps each; write the fastest as a recipe. Started again, it goes on."""
    from launcher.planning import Request
    from launcher.tune import table
    from launcher.tune.run import tune as run

    request = Request(
        recipe=recipe,
        hosts=hosts,
        include=include,
        exclude=exclude,
        sets=tuple(sets or ()),
        nproc=nproc,
        ssh_options=tuple(ssh_options or ()),
    )
    tuned = run(request, trials, steps, folder or Path("tune", recipe.stem), say)
    if as_json:
        print(json.dumps(table.as_json(tuned), indent=1))
    else:
        print("\n".join(table.as_text(tuned)))
    if tuned.code:
        say("stopped; the same command goes on where it was")
    raise typer.Exit(tuned.code or (0 if tuned.best else contract.EXIT_FAILED))
