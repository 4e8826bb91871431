"""Optimizer state on drives: how much of its transfer the update and the backward pass hide, against fio on the drive.

    python scripts/bench/offload.py FOLDER [FOLDER ...] [--millions 64] [--steps 7] [--precision bf16]
                                    [--engine libaio|io_uring] [--out FILE]

One rank. "fio": as many bytes read and at the same time written, past the page cache, in requests of the same size,
as many under way. "tier": distperf's files and threads with nothing else to do. "update": an update whose state is in
memory. "update, nvme": with state in FOLDER. A perfect overlap takes the longer of fio and update. All take turns, and
ratios are medians over turns, since a drive that others use too is not the same a second later.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from distperf.offload.disk import AHEAD, DiskTier
from distperf.offload.keeping import NO_OFFLOAD, Offload, check_drives, open_files, rank_files
from distperf.offload.spans import FP32, SPAN, cut, lay_out
from distperf.parallel.engine import DTYPES, Engine, build_engine
from distperf.parallel.mesh import make_mesh
from distperf.recipe.mesh import MeshShape
from distperf.recipe.runspec import OptimizerSpec, ScheduleSpec

CPU = torch.device("cpu")
OPTIMIZER = OptimizerSpec("adamw", 1e-4, (0.9, 0.95), 1e-8, 0.1, ScheduleSpec("constant", 0, 0, 0.0), ())
WIDTH = 1024  # a layer has WIDTH * WIDTH parameters


class Layers(nn.Module):
    """Products, one after the other."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(count))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def engine_of(layers: int, precision: str, offload: Offload) -> Engine:
    with torch.device("meta"):
        model = Layers(layers)
    return build_engine([model], zero=2, precision=precision, mesh=make_mesh(MeshShape(), CPU), device=CPU,
                        optimizer=OPTIMIZER, accumulation=1, offload=offload,
                        fill=lambda fqn, shape, start, stop: torch.full((stop - start,), 1e-3))  # fmt: skip


def step_of(engine: Engine, dtype: torch.dtype) -> Callable[[], tuple[float, float]]:
    """A step of the engine; returns seconds of the whole and of the update alone."""
    inputs = torch.ones(8, WIDTH, dtype=dtype)

    def step() -> tuple[float, float]:
        began = time.perf_counter()
        engine.backward(engine.parts[0](inputs).float().mean(), last=True)
        engine.finish()
        middle = time.perf_counter()
        engine.step(1e-4, 1.0)
        return time.perf_counter() - began, time.perf_counter() - middle

    return step


def bare_drive(
    layers: int, precision: str, folders: list[str]
) -> tuple[Callable[[], tuple[float, float]], DiskTier]:
    """Reading and writing all state once, with nothing to do in between; and the tier to be closed."""
    length = WIDTH * WIDTH
    spans = [span for own in cut([length] * layers, 1.0) for span in own]
    dtype = DTYPES[precision]
    places, sizes = lay_out(spans, DiskTier.kinds(dtype, moves=False), len(folders))
    files = open_files(rank_files(folders, "bench-drive", 0), sizes)
    tier = DiskTier(places, files, [torch.empty(length, dtype=dtype)] * layers)

    def round_trip() -> tuple[float, float]:
        began = time.perf_counter()
        tier.prepare()
        for span in spans:
            tier.give(tier.take(span))
        tier.settle()
        seconds = time.perf_counter() - began
        return seconds, seconds

    return round_trip, tier


def fio(folders: list[str], block: int, size: int, engine: str) -> Callable[[], tuple[float, float]]:
    """Reading and writing `size` bytes in all by fio, a pair of jobs a folder."""
    share = size // len(folders) // block * block
    command = ["fio", "--output-format=json", "--thread", "--direct=1", "--overwrite=1", f"--ioengine={engine}",
               f"--bs={block}", f"--size={share}", f"--iodepth={AHEAD}"]  # fmt: skip
    for folder in folders:
        for way in ("read", "write"):
            command += [f"--name={way}", f"--rw={way}", f"--filename={folder}/{way}.fio"]

    def run() -> tuple[float, float]:
        told = subprocess.run(command, capture_output=True, check=True).stdout
        jobs = json.loads(told)["jobs"]
        seconds = max(job[way]["runtime"] for job in jobs for way in ("read", "write")) / 1e3
        return seconds, seconds

    return run


def report(layers: int, precision: str, moved: int, times: dict[str, list[tuple[float, float]]]) -> list[str]:
    """What the turns took, and how they compare, turn by turn."""
    updates = {name: [update for _, update in found[1:]] for name, found in times.items()}
    steps = {name: [whole for whole, _ in found[1:]] for name, found in times.items()}
    rate = {name: moved / statistics.median(updates[name]) / 1e6 for name in times}

    def ratio(of: list[float], to: list[float]) -> str:
        found = sorted(theirs / own for own, theirs in zip(of, to, strict=True))
        return f"{statistics.median(found):.2f} ({found[0]:.2f} to {found[-1]:.2f})"

    best = [max(pair) for pair in zip(updates["fio"], updates["update"], strict=True)]
    return [
        f"{layers * WIDTH * WIDTH:,} parameters, {precision}, {moved / 2**20:,.0f} MiB read and written a step",
        *(f"{name:<13} step {statistics.median(steps[name]):6.3f} s   update {statistics.median(updates[name]):6.3f} s"
          + (f"   {rate[name]:6,.0f} MB/s" if name != "update" else "") for name in times),
        f"tier: {ratio(updates['tier'], updates['fio'])} of fio",
        f"update, nvme: {ratio(updates['update, nvme'], updates['fio'])} of fio, "
        f"{ratio(best, updates['update, nvme'])} x max(update, fio)",
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", nargs="+")
    parser.add_argument("--millions", type=int, default=64, help="parameters")
    parser.add_argument("--steps", type=int, default=7)
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="bf16")
    parser.add_argument("--engine", choices=("libaio", "io_uring"), default="libaio", help="fio's")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    if shutil.which("fio") is None:
        parser.error("fio is not installed")
    check_drives(args.folders)
    with ExitStack() as cleaned:
        args.folders = [cleaned.enter_context(tempfile.TemporaryDirectory(dir=each)) for each in args.folders]
        lines = measure(args)
    print("\n".join(lines))
    if args.out:
        args.out.write_text("\n".join(lines) + "\n")


def measure(args: argparse.Namespace) -> list[str]:
    """All ways in turn, so that a slow minute hits all."""
    layers, dtype = args.millions, DTYPES[args.precision]
    offload = Offload("nvme", 1.0, rank_files(args.folders, "bench", 0))
    engines = [engine_of(layers, args.precision, each) for each in (NO_OFFLOAD, offload)]
    round_trip, tier = bare_drive(layers, args.precision, args.folders)
    kinds = DiskTier.kinds(dtype, moves=False)
    size = layers * WIDTH * WIDTH * FP32 * kinds
    ways = {
        "fio": fio(args.folders, SPAN * FP32 * kinds, size, args.engine),
        "tier": round_trip,
        "update": step_of(engines[0], dtype),
        "update, nvme": step_of(engines[1], dtype),
    }
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for _ in range(args.steps + 1):
        for name, way in ways.items():
            times[name].append(way())
    engines[1].close()
    tier.close()
    return report(layers, args.precision, 2 * size, times)


if __name__ == "__main__":
    main()
