"""launch, plan, sbatch: start a run, or say what it would be."""

from __future__ import annotations

import enum
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from launcher.errors import UsageError

if TYPE_CHECKING:
    from launcher.dryrun import Wanted
    from launcher.planning import Request

Recipe = typer.Argument(None, metavar="RECIPE", help="The recipe (YAML).")
Args = typer.Argument(None, metavar="-- ARGS...", help="Arguments of the script, after --.")
Script = typer.Option(None, "--script", metavar="FILE", help="Run this script instead of a recipe.")
Hosts = typer.Option(
    None,
    "--hosts",
    metavar="FILE",
    help="Hostfile; without one, the hosts of the SLURM job that we are in, or this machine.",
)
Include = typer.Option(None, "--include", metavar="F", help="Only these hosts and slots: a@b:0,2@c[01-04].")
Exclude = typer.Option(None, "--exclude", metavar="F", help="All but these hosts and slots.")
Set = typer.Option(None, "--set", metavar="KEY=VALUE", help="Set a key of the recipe; may be given often.")
Nproc = typer.Option(None, "--nproc", min=1, metavar="N", help="Ranks per node where no slots are given.")
RunDir = typer.Option("runs", "--run-dir", metavar="DIR", help="Folder that run folders are made in.")
Resume = typer.Option(
    None, "--resume", metavar="RUN|CKPT", help="Go on from a run's or this checkpoint, as a new run."
)
SshOption = typer.Option(None, "--ssh-option", metavar="KEY=VALUE", help="As ssh's -o; beside ~/.ssh/config.")
DryRun = typer.Option(False, "--dry-run", help="Print what would be started where, and stop.")
Probe = typer.Option(False, "--probe", help="With --dry-run: ask hosts without slots for their devices.")
Quiet = typer.Option(False, "--quiet", "-q", help="No rank output and no progress; errors and the end only.")
Verbose = typer.Option(False, "--verbose", "-v", help="Tell every change of ranks and hosts, too.")
AsJson = typer.Option(False, "--json", help="Print JSON on stdout.")


class Color(enum.Enum):
    """When `launch` uses colours."""

    auto = "auto"
    always = "always"
    never = "never"


Colors = typer.Option(Color.auto, "--color", help="Colours; auto: on terminals, without NO_COLOR.")


def register(app: typer.Typer) -> None:
    """Add this group's commands."""
    app.command("launch")(launch)
    app.command("plan")(plan)
    app.command("sbatch")(sbatch)


def launch(
    recipe: str | None = Recipe,
    args: list[str] | None = Args,
    script: str | None = Script,
    hosts: Path | None = Hosts,
    include: str | None = Include,
    exclude: str | None = Exclude,
    sets: list[str] | None = Set,
    nproc: int | None = Nproc,
    run_dir: Path = RunDir,
    resume: str | None = Resume,
    ssh_options: list[str] | None = SshOption,
    no_check: bool = typer.Option(
        False, "--no-check", help="Skip the checks of versions, shared folders and memory."
    ),
    quiet: bool = Quiet,
    verbose: bool = Verbose,
    color: Color = Colors,
    detach: bool = typer.Option(
        False, "--detach", help="Go on in the background once the run has begun; print its id."
    ),
    dry_run: bool = DryRun,
    probe: bool = Probe,
    as_json: bool = AsJson,
) -> None:
    """Start a run and see it through: plan, check the nodes, start every rank, supervise, report."""
    _refuse_contradictions(dry_run, detach, probe, as_json)
    if quiet and verbose:
        raise UsageError("--quiet and --verbose: choose one")
    if hosts is None and not (dry_run or detach or "SLURM_JOB_ID" in os.environ):
        from launcher.transport.local import start_ahead

        start_ahead()
    from launcher.detach import detached
    from launcher.launch import launch as start
    from launcher.planning import Request

    request = Request(
        recipe=None if script or recipe is None else Path(recipe),
        script=script,
        script_args=_script_args(recipe, args, script),
        hosts=hosts,
        include=include,
        exclude=exclude,
        sets=tuple(sets or ()),
        nproc=nproc,
        run_dir=run_dir,
        resume=resume,
        ssh_options=tuple(ssh_options or ()),
        check=not no_check,
        quiet=quiet,
        verbose=verbose,
        color=color.value,
    )
    if dry_run:
        _show_plan(request, probe, as_json, with_commands=True)
    elif detach:
        raise typer.Exit(detached(lambda leave: start(request, say, leave)))
    else:
        raise typer.Exit(start(request, say))


def _refuse_contradictions(dry_run: bool, detach: bool, probe: bool, as_json: bool) -> None:
    if (probe or as_json) and not dry_run:
        raise UsageError(f"{'--probe' if probe else '--json'} belongs to --dry-run")
    if detach and dry_run:
        raise UsageError("--detach and --dry-run: a dry run starts nothing that could go on")


def say(line: str) -> None:
    """A line for the user, if there still is one to read it."""
    try:
        print(line, file=sys.stderr, flush=True)
    except OSError:  # a pipe without a reader, a terminal that was closed
        pass


def plan(
    recipe: Path = typer.Argument(..., metavar="RECIPE", help="The recipe (YAML)."),
    hosts: Path | None = Hosts,
    include: str | None = Include,
    exclude: str | None = Exclude,
    sets: list[str] | None = Set,
    nproc: int | None = Nproc,
    as_json: bool = AsJson,
    draw: bool = typer.Option(
        False, "--draw", help="A picture of a pipeline's step: what each rank does when, and where it waits."
    ),
    assume: str | None = typer.Option(
        None,
        "--assume",
        metavar="HOSTSxRANKSxDEVICE",
        help="Plan for hosts that are not there, such as 64x8xH100.",
    ),
    candidates: int = typer.Option(
        0,
        "--candidates",
        min=0,
        metavar="N",
        help="The N best ways to run it: ZeRO, tp, pp, micro-batch, checkpointing.",
    ),
    largest: bool = typer.Option(
        False, "--largest", help="The largest model of the recipe's proportions that these hosts can train."
    ),
) -> None:
    """Say what a recipe comes to on these hosts: mesh, batch, memory per rank term by term, time of a step."""
    from launcher.dryrun import Wanted
    from launcher.planning import Request

    request = Request(
        recipe=recipe,
        hosts=hosts,
        include=include,
        exclude=exclude,
        sets=tuple(sets or ()),
        nproc=nproc,
        assume=assume,
    )
    _show_plan(request, False, as_json, False, Wanted(draw, candidates, largest))


def sbatch(
    recipe: Path = typer.Argument(
        ..., metavar="RECIPE", help="The recipe (YAML); its slurm section says what is asked for."
    ),
    sets: list[str] | None = Set,
    run_dir: Path = RunDir,
    submit: bool = typer.Option(False, "--submit", help="Submit it, and say how to follow."),
) -> None:
    """Print a batch script for a recipe, or submit it to SLURM."""
    from launcher.slurm import submit as jobs

    order = jobs.prepare(recipe, tuple(sets or ()), run_dir)
    if not submit:
        print(order.script, end="")
        return
    run, lines = jobs.submit(order)
    print(run)
    for line in lines:
        say(line)


def _script_args(recipe: str | None, args: list[str] | None, script: str | None) -> tuple[str, ...]:
    """What stands after `--`; the parser hands its first word over as RECIPE when --script is given."""
    if script is not None:
        return (*([recipe] if recipe is not None else []), *(args or ()))
    if recipe is None:
        raise UsageError("name a recipe, or a script with --script")
    if args:
        raise UsageError(
            f"unexpected {args[0]!r}: arguments after -- are for --script; a recipe has script.args"
        )
    return ()


def _show_plan(
    request: Request, probe: bool, as_json: bool, with_commands: bool, wanted: Wanted | None = None
) -> None:
    from launcher import dryrun

    wanted = wanted or dryrun.PLAIN
    outcome = dryrun.outcome(request, probe)
    if as_json:
        print(json.dumps(dryrun.as_json(outcome, with_commands, wanted), indent=1))
    else:
        for line in dryrun.as_text(outcome, with_commands, wanted):
            print(line)
