"""status, ps, logs, attach, save, profile, stop, report: look at runs, and end one."""

from __future__ import annotations

import enum
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from launcher.rundir import RunDir as Run_

Run = typer.Argument(None, metavar="RUN", help="Run id, run folder, or nothing for the latest in ./runs.")
RunDir = typer.Option("runs", "--run-dir", metavar="DIR", help="Folder that run folders are in.")
AsJson = typer.Option(False, "--json", help="Print JSON on stdout.")


class OnInterrupt(str, enum.Enum):
    """What Ctrl-C does in `attach`."""

    ask = "ask"
    detach = "detach"
    stop = "stop"


def register(app: typer.Typer) -> None:
    """Add this group's commands."""
    for command in (status, ps, logs, attach, save, profile, stop, report):
        app.command()(command)


def status(
    run: str | None = Run,
    once: bool = typer.Option(False, "--once", help="One snapshot, also on a terminal."),
    watch: float | None = typer.Option(
        None, "--watch", min=0.1, metavar="S", help="A snapshot every S seconds."
    ),
    as_json: bool = AsJson,
    ascii: bool = typer.Option(False, "--ascii", help="Draw with ASCII characters only."),
    run_dir: Path = RunDir,
) -> None:
    """Show a run: interactive on a terminal (q quits, ? helps), else one snapshot."""
    from launcher import view
    from launcher.rundir import find_run

    found = find_run(run, run_dir)
    if not once and not as_json and watch is None and sys.stdout.isatty() and sys.stdin.isatty():
        _interact(found, ascii)
        return
    while True:
        seen = view.look(found)
        print(json.dumps(seen) if as_json else "\n".join(view.as_text(seen)), flush=True)
        if watch is None or seen["exit_code"] is not None or seen["state"] == "lost":
            return
        time.sleep(watch)


def _interact(run: Run_, ascii: bool) -> None:
    from launcher.cli.run import say
    from launcher.dashboard.terminal import show
    from launcher.errors import RunFolderError
    from launcher.slurm.queue import until_begun

    until_begun(run, True, say)
    problem = show(run, ascii=ascii)
    if problem:
        raise RunFolderError(problem)


def ps(as_json: bool = AsJson, run_dir: Path = RunDir) -> None:
    """List the runs in the run folder, newest last."""
    from launcher import view
    from launcher.errors import RunFolderError
    from launcher.rundir import all_runs

    rows = []
    for run in all_runs(run_dir):
        try:
            seen = view.look(run)
        except RunFolderError as error:
            print(f"distperf: {error}", file=sys.stderr)
            continue
        rows.append(
            {key: seen[key] for key in ("run", "state", "attempt", "step", "steps", "exit_code", "dir")}
        )
    if as_json:
        print(json.dumps({"schema": view.SCHEMA, "runs": rows}))
        return
    width = max([3, *(len(row["run"]) for row in rows)])
    print(f"{'run':<{width}}  state       attempt  step")
    for row in rows:
        of = f"/{row['steps']}" if row["steps"] else ""
        print(f"{row['run']:<{width}}  {row['state']:<10}  {row['attempt']:>7}  {row['step']}{of}")


def logs(
    run: str | None = Run,
    follow: bool = typer.Option(False, "--follow", "-f", help="Go on until the run ends."),
    rank: str | None = typer.Option(None, "--rank", metavar="SET", help="Only these ranks: 0,4-7."),
    host: str | None = typer.Option(None, "--host", metavar="SET", help="Only these hosts: node[01-04]."),
    grep: str | None = typer.Option(None, "--grep", metavar="RE", help="Only lines that match."),
    attempt: int | None = typer.Option(
        None, "--attempt", min=1, metavar="N", help="Of this attempt; the newest else."
    ),
    raw: bool = typer.Option(False, "--raw", help="The bytes as they were written, without prefix."),
    run_dir: Path = RunDir,
) -> None:
    """Print what the ranks wrote, rank by rank; with -f, as it comes."""
    from launcher.cli.run import say
    from launcher.readlogs import Choice, read
    from launcher.rundir import find_run
    from launcher.slurm.queue import until_begun

    choice = Choice.of(rank, host, grep, attempt)
    found = find_run(run, run_dir)
    until_begun(found, follow, say)
    for piece in read(found, choice, follow, raw):
        sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()


def attach(
    run: str | None = Run,
    on_interrupt: OnInterrupt = typer.Option(
        OnInterrupt.ask, "--on-interrupt", help="What Ctrl-C does; where nobody can be asked, it detaches."
    ),
    run_dir: Path = RunDir,
) -> None:
    """Show a run as `launch` would, until it ends; exits with its exit code, or 130 when you leave it before."""
    from launcher.attach import attach as show
    from launcher.cli.run import say
    from launcher.rundir import find_run
    from launcher.slurm.queue import until_begun

    found = find_run(run, run_dir)
    until_begun(found, True, say)
    raise typer.Exit(show(found, on_interrupt.value, say))


def save(run: str | None = Run, run_dir: Path = RunDir) -> None:
    """Have all ranks write a checkpoint after the step that they are at; waits until it is there, and names it."""
    from launcher.rundir import find_run
    from launcher.save import save_run

    print(save_run(find_run(run, run_dir)), file=sys.stderr)


def profile(
    run: str | None = Run,
    steps: int = typer.Option(3, "--steps", min=1, max=50, metavar="N", help="Steps to trace."),
    rank: str | None = typer.Option(
        None, "--rank", metavar="SET", help="Of these ranks: 0,4-7. Default: the first eight."
    ),
    run_dir: Path = RunDir,
) -> None:
    """Trace a few steps of a running run, on several ranks at once, and say who computes, waits and idles."""
    from launcher.profile import profile_run
    from launcher.rundir import find_run

    for line in profile_run(find_run(run, run_dir), steps, rank):
        print(line, file=sys.stderr)


def stop(
    run: str | None = Run,
    now: bool = typer.Option(False, "--now", help="Without the grace that ranks get to end by themselves."),
    run_dir: Path = RunDir,
) -> None:
    """End a run in order, as Ctrl-C in its terminal would; a second time, at once. Waits until it has ended."""
    from launcher.rundir import find_run
    from launcher.stop import stop_run

    print(stop_run(find_run(run, run_dir), now), file=sys.stderr)


def report(
    run: str | None = Run,
    html: Path | None = typer.Option(
        None, "--html", metavar="FILE", help="Write a page that needs nothing else."
    ),
    run_dir: Path = RunDir,
) -> None:
    """Tell what became of a run: attempts, failures, throughput, loss, and where the time went."""
    from launcher.recap.facts import gather
    from launcher.recap.page import page
    from launcher.recap.text import as_text
    from launcher.rundir import find_run, write_atomic

    facts = gather(find_run(run, run_dir))
    if html is None:
        print("\n".join(as_text(facts)))
        return
    write_atomic(html, page(facts))
    print(f"distperf: wrote {html}", file=sys.stderr)
