"""`distperf sbatch`: a recipe becomes a batch script, and a run that waits for its job."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from distperf.recipe.load import dump_recipe, load_recipe
from distperf.recipe.schema import Recipe
from launcher.errors import RunFolderError
from launcher.rundir import RunDir, new_run_id, readable_by_group, write_atomic
from launcher.slurm import queue
from launcher.slurm.script import batch_script, is_array


@dataclass(frozen=True)
class Order:
    """What is to be submitted."""

    recipe: Recipe
    script: str
    runs: Path


def prepare(path: Path, sets: tuple[str, ...], runs: Path) -> Order:
    """Read the recipe and write its script. Contacts nobody. Raises RecipeError."""
    recipe = load_recipe(path, sets)
    flags = [word for flag in sets for word in ("--set", flag)]
    beside = [] if runs == Path("runs") else ["--run-dir", str(runs)]
    command = [sys.executable, "-m", "launcher", "launch", str(path), *flags, *beside]
    return Order(recipe, batch_script(recipe, command, str(runs), str(path)), runs)


def submit(order: Order) -> tuple[str, list[str]]:
    """Submit it: (what names the run, how to follow it). Raises UsageError and LauncherError.

    The job is held back until its run folder is there, so that it cannot begin without finding it.
    """
    try:
        order.runs.mkdir(parents=True, exist_ok=True)  # slurmstepd makes no folder for a job's output
    except OSError as error:
        raise RunFolderError(f"cannot make {order.runs}: {error.strerror}") from None
    key = queue.submit(order.script, Path.cwd())
    if is_array(order.recipe):  # each element is a run of its own, made when it begins
        queue.release(key)
        return key, [
            f"job array {key} is submitted",
            f"  distperf ps --run-dir {order.runs}",
            f"  scancel {key}",
        ]
    run = RunDir(order.runs.absolute() / new_run_id(order.recipe.name))
    shared = order.recipe.run.share == "group"
    with readable_by_group(shared):
        run.create(shared=shared)
        write_atomic(run.recipe, dump_recipe(order.recipe))
        queue.mark(run, key)
    queue.release(key)
    name = queue.link_name(key) if order.runs == Path("runs") else run.path
    return run.run_id, [
        f"job {key} is submitted, as run {run.run_id}",
        f"  distperf status {name}",
        f"  distperf logs -f {name}",
        f"  distperf stop {name}",
    ]
