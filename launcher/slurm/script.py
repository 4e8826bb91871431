"""The batch script of a recipe: readable, and nothing in it that sbatch or bash would not show. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from distperf.recipe.schema import Recipe


def batch_script(recipe: Recipe, command: Sequence[str], runs: str, source: str) -> str:
    """The script. command: `distperf launch ...`; runs: the folder that its output goes to, beside the runs."""
    slurm = recipe.slurm
    ranks = slurm.gpus or (1 if recipe.launch.nproc == "auto" else recipe.launch.nproc)
    signal = f"B:{slurm.signal}@{slurm.signal_s}" if slurm.signal_s else None
    options = {
        "job-name": recipe.name,
        "output": f"{runs}/slurm-{'%A_%a' if is_array(recipe) else '%j'}.log",
        "open-mode": "append",
        "partition": slurm.partition,
        "account": slurm.account,
        "qos": slurm.qos,
        "time": slurm.time,
        "nodes": slurm.nodes,
        "ntasks-per-node": ranks,
        "gpus-per-node": slurm.gpus,
        "cpus-per-task": slurm.cpus,
        "mem": slurm.mem,
        "constraint": slurm.constraint,
        "signal": signal,
    }
    lines = ["#!/bin/bash", f"# Made by `distperf sbatch {source}`."]
    lines += [f"#SBATCH --{name}={_word(str(value))}" for name, value in options.items() if value is not None]
    lines.append("#SBATCH --requeue" if slurm.requeue else "#SBATCH --no-requeue")
    lines += [f"#SBATCH {option}" for option in slurm.extra]
    lines += ["", *slurm.setup, *([""] if slurm.setup else [])]
    lines.append(
        "# exec: signals that SLURM sends to the batch shell reach distperf, which starts an agent a node."
    )
    if slurm.container.image is not None:
        lines.append(f"# Agents, and so ranks, run in the container {slurm.container.image}.")
    lines.append(f"exec {shlex.join(command)}")
    return "\n".join(lines) + "\n"


def is_array(recipe: Recipe) -> bool:
    """Whether its job is an array of jobs."""
    return any(option.startswith(("--array", "-a")) for option in recipe.slurm.extra)


def _word(text: str) -> str:
    """A value in an #SBATCH line, which knows double quotes only."""
    return (
        text
        if not set(text) & set(" \t#'\"\\")
        else '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
    )
