"""Optimizer state on drives: how much of its transfer the update and the backward pass hide, against the bare drive.

    python scripts/bench/offload.py FOLDER [FOLDER ...] [--millions 64] [--steps 7] [--precision bf16] [--out FILE]

One rank. "drive": the same extents read and written by the same threads, with nothing else to do. "update": an update
whose state is in memory. "update, nvme": with state in FOLDER. A perfect overlap takes the longer of drive and update:
the ratio is that, divided by what was measured. Medians; wants a machine with nothing else on it.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from distperf.offload.disk import DiskTier
from distperf.offload.keeping import NO_OFFLOAD, Offload, check_drives, open_files, rank_files
from distperf.offload.spans import FP32, cut, lay_out
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


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", nargs="+")
    parser.add_argument("--millions", type=int, default=64, help="parameters")
    parser.add_argument("--steps", type=int, default=7)
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="bf16")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    check_drives(args.folders)
    layers, dtype = args.millions, DTYPES[args.precision]
    offload = Offload("nvme", 1.0, rank_files(args.folders, "bench", 0))
    engines = [engine_of(layers, args.precision, each) for each in (NO_OFFLOAD, offload)]
    round_trip, tier = bare_drive(layers, args.precision, args.folders)
    ways = {
        "drive": round_trip,
        "update": step_of(engines[0], dtype),
        "update, nvme": step_of(engines[1], dtype),
    }
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for _ in range(args.steps + 1):
        for name, way in ways.items():  # in turn, so that a slow minute hits all
            times[name].append(way())
    step = {name: statistics.median(whole for whole, _ in found[1:]) for name, found in times.items()}
    part = {name: statistics.median(update for _, update in found[1:]) for name, found in times.items()}
    moved = 2 * layers * WIDTH * WIDTH * FP32 * DiskTier.kinds(dtype, moves=False)
    best = max(part["drive"], part["update"])
    lines = [
        f"{layers * WIDTH * WIDTH:,} parameters, {args.precision}, {moved / 2**20:,.0f} MiB read and written a step",
        *(f"{name:<14}step {step[name]:7.3f} s   update {part[name]:7.3f} s" for name in ways),
        f"drive          {moved / part['drive'] / 1e6:,.0f} MB/s",
        f"in the update  {moved / part['update, nvme'] / 1e6:,.0f} MB/s",
        f"overlap ratio  {best / part['update, nvme']:.2f} of max(drive, update)",
    ]
    engines[1].close()
    tier.close()
    print("\n".join(lines))
    if args.out:
        args.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
