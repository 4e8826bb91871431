"""Plans against reality on this machine, as one table: memory of the fullest rank, and seconds of a step.

    python scripts/bench/planned.py [--steps 8] [--turns 2] [--out FILE]

Memory: what a step's state and all that comes and goes take, as the kernel counts it in ranks whose allocator gives
back what is freed, without a process's own 300 MiB (tests/planned_memory.py). Time: `distperf bench`, then plan and
launch each recipe, `turns` times; a row's times are the means of its plans and the least of its runs' medians, of
which a busy machine makes each longer.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from planned_memory import HERE, Counted, counted  # noqa: E402

RECIPE = """
name: timed
model: {family: llama, layers: 4, hidden: 256, heads: 4, kv_heads: 2, ffn: 704, vocab: 2000}
data: {synthetic: true, seq_len: 256}
train: {steps: 8, global_batch: 8, micro_batch: 4, check_replicas_every: 0}
precision: fp32
checkpoint: {every_steps: 0, save_last: false}
launch: {max_restarts: 0, env: {OMP_NUM_THREADS: "1"}}
"""
ZERO = "parallel.zero={}"
BF16, WIDE = "precision=bf16", "model.hidden=512"
ONE, TWO = "train.micro_batch=1", "train.micro_batch=2"
SELECTIVE, FULL = "activation_checkpoint=selective", "activation_checkpoint=full"
TP, CP, PP, SCHEDULE = "parallel.tp=2", "parallel.cp=2", "parallel.pp=2", "parallel.pp_schedule={}"
STATE = ("offload.optimizer=nvme", f"offload.path={HERE}")
ALL = (*STATE, "offload.params=nvme")
ROWS: dict[int, list[tuple[str, ...]]] = {
    1: [
        (ZERO.format(2),),
        (ZERO.format(2), "train.micro_batch=8"),
        (ZERO.format(2), BF16),
        (ZERO.format(2), BF16, TWO, SELECTIVE),
        (ZERO.format(2), FULL),
        (ZERO.format(2), *STATE),
        (ZERO.format(2), BF16, *STATE),
        (ZERO.format(3), TWO, *ALL),
        (ZERO.format(3), BF16, FULL, *ALL),
    ],
    2: [
        (ZERO.format(0),),
        (ZERO.format(1), BF16),
        (ZERO.format(2),),
        (ZERO.format(2), WIDE),
        (ZERO.format(2), BF16, TWO),
        (ZERO.format(2), BF16, FULL),
        (ZERO.format(2), BF16, TWO, *STATE),
        (ZERO.format(3),),
        (ZERO.format(3), BF16, SELECTIVE),
        (ZERO.format(3), BF16, ONE),
        (ZERO.format(3), TWO, *STATE),
        (ZERO.format(3), TWO, *ALL),
        (ZERO.format(2), TP),
        (ZERO.format(2), TP, BF16, SELECTIVE),
        (ZERO.format(2), CP),
        (ZERO.format(2), CP, "parallel.cp_method=ring", BF16),
        (ZERO.format(1), PP, ONE),
        (ZERO.format(1), PP, ONE, BF16, SCHEDULE.format("gpipe")),
        (ZERO.format(1), PP, ONE, SCHEDULE.format("zbv")),
        (ZERO.format(1), PP, ONE, BF16, SCHEDULE.format("interleaved_1f1b")),
    ],
}
MIB = 2**20


@dataclass(frozen=True)
class Row:
    """A recipe and what came of it. plans, runs: seconds of a step, of every turn."""

    world: int
    keys: tuple[str, ...]
    memory: Counted
    plans: list[float]
    runs: list[float]

    @property
    def planned_s(self) -> float:
        return statistics.mean(self.plans)

    @property
    def ratio(self) -> float:
        return self.planned_s / min(self.runs)

    def line(self) -> str:
        memory = self.memory
        sizes = f"{memory.planned_bytes / MIB:.1f} | {memory.counted_bytes / MIB:.1f} | {memory.ratio:.2f}"
        times = f"{self.planned_s:.3f} | {min(self.runs):.3f} | {self.ratio:.2f}"
        return f"| {self.world} | {named(self.keys)} | {sizes} | {times} |"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = measure(Path(folder), args.steps, args.turns)
    text = "\n".join(table(rows)) + "\n"
    print(text, end="")
    if args.out:
        args.out.write_text(text)


def measure(folder: Path, steps: int, turns: int) -> list[Row]:
    (folder / "r.yaml").write_text(RECIPE)
    (folder / "drive").mkdir()
    rows = []
    for world, recipes in ROWS.items():
        fullest = [max(ranks, key=lambda one: one.counted_bytes) for ranks in counted(world, recipes, RECIPE)]
        rows += [Row(world, keys, memory, [], []) for keys, memory in zip(recipes, fullest, strict=True)]
    for _ in range(turns):
        for world in ROWS:
            distperf(folder, "bench", "--recipe", "r.yaml", "--nproc", world, "--path", "drive")
        for row in rows:
            flags = ["--nproc", row.world, *(word for key in row.keys for word in ("--set", key))]
            flags = [str(word).replace(HERE, "drive") for word in flags]
            row.plans.append(distperf(folder, "plan", "r.yaml", *flags)["step_s"])
            row.runs.append(step_of_a_run(folder, flags, steps))
            print(row.line(), file=sys.stderr)
    return rows


def table(rows: list[Row]) -> list[str]:
    return [
        "| ranks | recipe | planned, MiB | counted, MiB | | planned, s | measured, s | |",
        "|---|---|---|---|---|---|---|---|",
        *(row.line() for row in rows),
        "",
        f"Memory: {sum(0.95 <= row.memory.ratio <= 1.1 for row in rows)} of {len(rows)} within -5 and +10 %. "
        f"Time: {sum(0.75 <= row.ratio <= 1.25 for row in rows)} of {len(rows)} within 25 %.",
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


def step_of_a_run(folder: Path, flags: list[str], steps: int) -> float:
    """The median of a run's steps but the first two."""
    done = launcher(folder, "launch", "r.yaml", "--quiet", *flags, "--set", f"train.steps={steps}")
    if done.returncode:
        raise SystemExit(f"{' '.join(flags)}: {done.stderr}")
    lines = (folder / "runs" / "latest" / "metrics.jsonl").read_text().splitlines()
    seconds = [json.loads(line)["step_s"] for line in lines]
    return statistics.median(seconds[2:])


def named(keys: tuple[str, ...]) -> str:
    """In a table."""
    return ", ".join(key.replace("parallel.", "").replace("train.", "").replace("activation_", "")
                     for key in keys if not key.startswith("offload.path"))  # fmt: skip


if __name__ == "__main__":
    main()
