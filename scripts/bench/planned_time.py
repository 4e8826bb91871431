"""Planned against measured step times on this machine, as a table: `distperf bench`, then plan and launch each recipe.

    python scripts/bench/planned_time.py [--steps 8] [--out FILE]

Rates are measured before and after the runs; a step's planned time is the mean of both plans. What the machine did to a
layer of the same width meanwhile is told below the table: on a shared one no plan can be better than that.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
RECIPE = """
name: timed
model: {family: llama, layers: 4, hidden: 256, heads: 4, kv_heads: 2, ffn: 704, vocab: 2000}
data: {synthetic: true, seq_len: 256}
train: {steps: 8, global_batch: 8, micro_batch: 4, check_replicas_every: 0}
precision: fp32
checkpoint: {every_steps: 0, save_last: false}
launch: {max_restarts: 0, env: {OMP_NUM_THREADS: "1"}}
"""
BF16, WIDE = "precision=bf16", "model.hidden=512"
NVME = ("offload.optimizer=nvme", "offload.path=drive")
ROWS: list[tuple[int, tuple[str, ...]]] = [
    (1, ("parallel.zero=2",)),
    (1, ("parallel.zero=2", "train.micro_batch=8")),
    (1, ("parallel.zero=2", BF16)),
    (1, ("parallel.zero=2", "activation_checkpoint=full")),
    (1, ("parallel.zero=2", *NVME)),
    (2, ("parallel.zero=0",)),
    (2, ("parallel.zero=2",)),
    (2, ("parallel.zero=2", WIDE)),
    (2, ("parallel.zero=2", BF16)),
    (2, ("parallel.zero=3",)),
    (2, ("parallel.zero=3", BF16, "activation_checkpoint=selective")),
    (2, ("parallel.zero=2", "parallel.tp=2")),
    (2, ("parallel.zero=2", "parallel.cp=2")),
    (2, ("parallel.zero=1", "parallel.pp=2", "train.micro_batch=2")),
]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        text = "\n".join(table(Path(folder), args.steps)) + "\n"
    print(text, end="")
    if args.out:
        args.out.write_text(text)


def table(folder: Path, steps: int) -> list[str]:
    (folder / "r.yaml").write_text(RECIPE)
    (folder / "drive").mkdir()
    rates, plans, times = [], [], []
    worlds = sorted({world for world, _ in ROWS})
    for turn in range(2):
        rates.append(
            {
                world: distperf(folder, "bench", "--recipe", "r.yaml", "--nproc", world, "--path", "drive")
                for world in worlds
            }
        )
        plans.append(
            [distperf(folder, "plan", "r.yaml", *flags(world, keys))["step_s"] for world, keys in ROWS]
        )
        if turn == 0:
            times = [measured(folder, world, keys, steps) for world, keys in ROWS]
    lines = ["| ranks | recipe | planned, s | measured, s | planned / measured |", "|---|---|---|---|---|"]
    ratios = []
    for (world, keys), before, after, seconds in zip(ROWS, *plans, times, strict=True):
        planned = (before + after) / 2
        ratios.append(planned / seconds)
        lines.append(f"| {world} | {named(keys)} | {planned:.3f} | {seconds:.3f} | {ratios[-1]:.2f} |")
    within = sum(0.75 <= ratio <= 1.25 for ratio in ratios)
    drift = [layer_rate(rates[1][world]) / layer_rate(rates[0][world]) for world in worlds]
    told = ", ".join(
        f"{ratio:.2f} times with {world} rank(s)" for world, ratio in zip(worlds, drift, strict=True)
    )
    return [
        *lines,
        "",
        f"{within} of {len(ROWS)} within 25 %. Between the two measurings a layer's rate changed {told}.",
    ]


def distperf(folder: Path, *words: Any) -> dict[str, Any]:
    """The JSON of a command."""
    done = launcher(folder, *words, "--json")
    if done.returncode:
        raise SystemExit(f"distperf {' '.join(map(str, words))}: {done.stderr}")
    value: dict[str, Any] = json.loads(done.stdout)
    return value


def launcher(folder: Path, *words: Any) -> subprocess.CompletedProcess[str]:
    print(*words, file=sys.stderr)
    env = {**os.environ, "PYTHONPATH": str(ROOT), "DISTPERF_CACHE": str(folder / "cache")}
    command = [sys.executable, "-m", "launcher", *map(str, words)]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)


def measured(folder: Path, world: int, keys: tuple[str, ...], steps: int) -> float:
    """The median of a run's steps but the first two."""
    done = launcher(folder, "launch", "r.yaml", "--quiet", *flags(world, (*keys, f"train.steps={steps}")))
    if done.returncode:
        raise SystemExit(f"{named(keys)}: {done.stderr}")
    lines = (folder / "runs" / "latest" / "metrics.jsonl").read_text().splitlines()
    seconds = [json.loads(line)["step_s"] for line in lines]
    print(*(f"{each:.3f}" for each in seconds), file=sys.stderr)
    return statistics.median(seconds[2:])


def flags(world: int, keys: tuple[str, ...]) -> list[str]:
    return ["--nproc", str(world), *(word for key in keys for word in ("--set", key))]


def named(keys: tuple[str, ...]) -> str:
    return ", ".join(key.rpartition(".")[2] for key in keys if not key.startswith("offload.path"))


def layer_rate(bench: dict[str, Any]) -> float:
    """Of a layer 256 wide in fp32."""
    points = next(m["points"] for m in bench["measures"] if (m["what"], m["where"]) == ("layer", "fp32"))
    return float(dict(map(tuple, points))[256])


if __name__ == "__main__":
    main()
