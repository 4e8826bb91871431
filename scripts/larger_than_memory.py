"""Trains a model whose state is larger than the memory it may have, by a limit of the kernel's, and shows that it is.

    python scripts/larger_than_memory.py FOLDER [--limit-mib 400] [--layers 47] [--hidden 384] [--steps 2]

As root, FOLDER on a drive. The same run several times, its launcher and one rank together in a memory cgroup where it
says "limited": in memory without a limit, for its losses; on drives, limited, which must have the same losses to the
bit; the same stopped half-way, with a checkpoint, and resumed; in memory, limited, which must be warned of beforehand
and killed and explained. With activation_checkpoint: full.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from distperf.recipe.estimate import known_parameters  # noqa: E402
from distperf.recipe.runspec import RunSpec, from_json  # noqa: E402

DISTPERF = str(Path(sys.executable).with_name("distperf"))
V1, V2 = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")
STATE_BYTES = 16  # of a parameter in fp32: weight, gradient, two moments
RECIPE = """
name: larger
model: {{family: llama, layers: {layers}, hidden: {hidden}, heads: 8, kv_heads: 8, ffn: {ffn}, vocab: 256}}
data: {{synthetic: true, seq_len: 64}}
train: {{steps: {steps}, global_batch: 1, micro_batch: 1}}
optimizer: {{lr: 1e-3, schedule: {{name: constant, warmup_steps: 0}}}}
precision: fp32
parallel: {{zero: 3}}
activation_checkpoint: full
checkpoint: {{every_steps: 0, save_last: false}}
launch: {{nproc: 1, max_restarts: 0, heartbeat_timeout_s: 60, lease_s: 120}}
"""
# A CPU's memory: nothing moves, by the same engine.
IN_MEMORY = ("offload.optimizer=cpu", "offload.params=cpu")
SAVES = ("checkpoint.every_steps=1",)


@dataclass(frozen=True)
class Ran:
    """What became of a launch."""

    code: int
    said: str
    losses: list[float]
    seconds: float
    parameters: int


@contextmanager
def cgroup(limit_bytes: int) -> Iterator[Path]:
    """A memory cgroup, by whichever version the kernel has; without swap."""
    first = V1.is_dir()
    group = (V1 if first else V2) / f"distperf-larger-{os.getpid()}"
    group.mkdir()
    try:
        (group / ("memory.limit_in_bytes" if first else "memory.max")).write_text(str(limit_bytes))
        swap = group / ("memory.memsw.limit_in_bytes" if first else "memory.swap.max")
        if swap.exists():
            swap.write_text(str(limit_bytes) if first else "0")
        yield group
    finally:
        while (group / "cgroup.procs").read_text():
            time.sleep(0.1)
        group.rmdir()


def launch(folder: Path, keys: tuple[str, ...], group: Path | None = None, *flags: str) -> Ran:
    """A run in `folder`, in a cgroup or none."""
    sets = [word for key in keys for word in ("--set", key)]
    command = [DISTPERF, "launch", "recipe.yaml", *sets, *flags]
    if group is not None:
        enter = 'echo $$ > "$1/cgroup.procs"; shift; exec "$@"'
        command = ["sh", "-c", enter, "sh", str(group), *command]
    began = time.monotonic()
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    run = folder / "runs" / "latest"
    if not run.exists():
        raise SystemExit(f"no run:\n{done.stdout}{done.stderr}")
    path = run / "metrics.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    count = known_parameters(from_json(RunSpec, (run / "runspec.json").read_text()).model)
    assert count is not None
    return Ran(done.returncode, done.stdout + done.stderr, [json.loads(line)["loss"] for line in lines],
               time.monotonic() - began, count)  # fmt: skip


def demand(holds: bool, what: str, ran: Ran) -> None:
    """Say what was seen; end where it is not what was promised."""
    print(("ok    " if holds else "NOT   ") + what, flush=True)
    if not holds:
        raise SystemExit(ran.said)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--limit-mib", type=int, default=400)
    parser.add_argument("--layers", type=int, default=47)
    parser.add_argument("--hidden", type=int, default=384)
    parser.add_argument("--steps", type=int, default=2)
    args = parser.parse_args()
    folder, limit = args.folder.resolve(), args.limit_mib << 20
    drive = folder / "drive"
    drive.mkdir(parents=True, exist_ok=True)
    shape = {"layers": args.layers, "hidden": args.hidden, "ffn": 11 * args.hidden // 4, "steps": args.steps}
    (folder / "recipe.yaml").write_text(RECIPE.format(**shape))
    on_drives = ("offload.optimizer=nvme", "offload.params=nvme", f"offload.path={drive}")

    wanted = launch(folder, IN_MEMORY)
    state = STATE_BYTES * wanted.parameters
    print(
        f"      {wanted.parameters:,} parameters, {state / 2**20:,.0f} MiB of state; limit {args.limit_mib} MiB"
    )
    demand(
        wanted.code == 0 and len(wanted.losses) == args.steps,
        f"in memory, no limit: {wanted.seconds:.0f} s",
        wanted,
    )
    demand(state >= 3 * limit, f"state is {state / limit:.1f} times the limit", wanted)
    with cgroup(limit) as group:
        found = launch(folder, on_drives, group)
    demand(found.code == 0, f"on drives, limited: {found.seconds:.0f} s", found)
    demand(found.losses == wanted.losses, f"losses equal to the bit: {found.losses}", found)
    half = args.steps // 2
    with cgroup(limit) as group:
        first = launch(folder, (*on_drives, *SAVES, f"train.steps={half}"), group)
    demand(first.code == 0, f"half of it, with checkpoints, limited: {first.seconds:.0f} s", first)
    with cgroup(limit) as group:
        rest = launch(
            folder, (*on_drives, *SAVES), group, "--resume", str((folder / "runs" / "latest").resolve())
        )
    demand(rest.code == 0, f"resumed, limited: {rest.seconds:.0f} s", rest)
    demand(first.losses + rest.losses == wanted.losses, "losses of both parts equal to the bit", rest)
    with cgroup(limit) as group:
        refused = launch(folder, (), group)
    demand(
        refused.code == 4 and "the plan of memory is" in refused.said, "in memory, limited: refused", refused
    )
    with cgroup(limit) as group:
        dead = launch(folder, (), group, "--no-check")
    demand(
        dead.code == 1 and "killed by the kernel" in dead.said, "killed, and the report says by what", dead
    )
    demand("planned: " in dead.said, "and what was planned, and what was there", dead)
    demand("--set offload.params=nvme" in dead.said, "and drives as a way out", dead)


if __name__ == "__main__":
    main()
