"""The update of optimizer state in host memory, as offload makes it, against what the memory gives.

    python scripts/bench/adam.py [--millions 48] [--rounds 9] [--threads 1 2]

Bytes a parameter: fp32 weights and moments read and written (24); in bf16 the gradient in and the working copy out
(4), in fp32 the gradient in (4). STREAM's four loops are counted as STREAM does; "in place" reads no cache line only to
write over it, so it is above what STREAM calls the limit. All take turns; the best of all rounds counts, as in STREAM.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from distperf.offload.moving import Mover
from distperf.offload.spans import cut
from distperf.offload.states import Resident, host_zeros
from distperf.optim.adamw import Update
from distperf.optim.groups import Treatment
from distperf.recipe.runspec import OptimizerSpec, ScheduleSpec

CPU = torch.device("cpu")
SPEC = OptimizerSpec("adamw", 1e-4, (0.9, 0.95), 1e-8, 0.1, ScheduleSpec("constant", 0, 0, 0.0), ())
BUCKET = 6 << 20  # parameters
Way = tuple[int, Callable[[], object]]  # bytes a parameter, and what moves them
STREAM = ("copy", "scale", "add", "triad")


def streams(numel: int) -> dict[str, Way]:
    """McCalpin's loops (STREAM, 1995), by torch."""
    a, b, c = (torch.ones(numel) for _ in range(3))
    return {
        "copy": (8, lambda: c.copy_(a)),
        "scale": (8, lambda: torch.mul(a, 3.0, out=c)),
        "add": (12, lambda: torch.add(a, b, out=c)),
        "triad": (12, lambda: torch.add(a, b, alpha=3.0, out=c)),
        "in place": (8, lambda: c.mul_(1.0)),
    }


def update(numel: int, dtype: torch.dtype) -> Way:
    """All spans of as many parameters, one after the other, gradients scaled as clipping does."""
    working = [host_zeros(BUCKET, CPU, dtype) for _ in range(numel // BUCKET)]
    grads = [host_zeros(BUCKET, CPU, dtype).fill_(1e-3) for _ in working]
    spans = [span for own in cut([BUCKET] * len(working), 1.0) for span in own]
    tier = Resident(spans, working, CPU, on_host=True)

    def step() -> None:
        mover = Mover(Update(SPEC, 3, 1e-4, torch.tensor(0.999)))
        for span in spans:
            state, grad = tier.take(span), grads[span.bucket][span.part]
            into = None if state.is_working else working[span.bucket][span.part]
            mover.move(state, grad, into, Treatment(1.0, 0.1))

    return 28, step


def rates(ways: dict[str, Way], numel: int, rounds: int) -> dict[str, float]:
    """Bytes a second of each, at its best."""
    best = dict.fromkeys(ways, float("inf"))
    for _ in range(rounds):
        for name, (_, way) in ways.items():
            began = time.perf_counter()
            way()
            best[name] = min(best[name], time.perf_counter() - began)
    return {name: ways[name][0] * numel / seconds for name, seconds in best.items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--millions", type=int, default=48, help="parameters")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    args = parser.parse_args()
    numel = (args.millions << 20) // BUCKET * BUCKET
    ways = streams(numel) | {f"update, {name}": update(numel, dtype) for name, dtype in
                             (("bf16", torch.bfloat16), ("fp32", torch.float32))}  # fmt: skip
    print("| threads | loop | GB/s | of STREAM's best |\n|---|---|---|---|")
    for threads in args.threads:
        torch.set_num_threads(threads)
        found = rates(ways, numel, args.rounds)
        limit = max(found[name] for name in STREAM)
        for name, rate in found.items():
            print(f"| {threads} | {name} | {rate / 1e9:.1f} | {rate / limit:.2f} |")


if __name__ == "__main__":
    main()
