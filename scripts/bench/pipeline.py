"""Speed of pipelines on two ranks of one thread each, against what their bubble leaves.

    python scripts/bench/pipeline.py [--schedule 1f1b zbv ...] [--micro-batches 4 8 16] [--steps 9] [--out FILE]

Ideal: each stage's passes are timed with nothing to wait for, on both ranks at once, before and after each step of the
pipeline; the timeline of the schedule with these costs is the time of an ideal step, and `reached` the median of how
much of it the step between reached, so that a slow minute hits both. `computing` is the share of the ranks' CPU time
that goes into the passes themselves; the rest moves tensors and keeps order. Other users of the machine disturb that
number little.
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from distperf.model.init import fill_for
from distperf.model.llama import build_model
from distperf.model.loss import loss_sum
from distperf.parallel.pipeline import Pipelined
from distperf.parallel.stage import Flow
from distperf.recipe.runspec import ModelSpec
from distperf.recipe.schedules import SCHEDULES, stage_count
from distperf.recipe.stages import Stage, held_stages, model_costs, split_layers
from distperf.recipe.timeline import SLOTS, timeline

RANKS, BATCH, LENGTH = 2, 2, 256
MODEL = ModelSpec("llama", 8, 256, 4, 4, 704, 1024, False, 1e4, 1e-5, 0.0)
FLOW = Flow((BATCH, LENGTH), (BATCH, LENGTH, MODEL.hidden), torch.float32)
PASS_SLOTS = SLOTS["F"] + SLOTS["B"]


class Random:
    """Micro-batches that cost nothing to make."""

    def __init__(self) -> None:
        self._tokens = torch.randint(
            MODEL.vocab, (2, BATCH, LENGTH), generator=torch.Generator().manual_seed(0)
        )

    def batch(self, step: int, micro: int) -> tuple[Tensor, Tensor]:
        return self._tokens[0], self._tokens[1]


class Gradients:
    """The engine: adds gradients up in place, and does nothing else."""

    def __init__(self, parts: list[nn.Module]) -> None:
        self.parts = parts

    def collect(self) -> None:
        """Nothing: `.grad` adds up."""

    def finish(self) -> None:
        for part in self.parts:
            part.zero_grad(set_to_none=False)


def filled(place: Stage) -> nn.Module:
    part, fill = build_model(MODEL, place).to_empty(device="cpu"), fill_for(MODEL, 0)
    with torch.no_grad():
        for name, parameter in part.named_parameters():
            parameter.copy_(fill(name, parameter.shape, 0, parameter.numel()).view_as(parameter))
    return part


@dataclass(frozen=True)
class Spent:
    """Seconds: on the clock, and of the CPU over both ranks."""

    wall: float
    cpu: float


def passes_alone(part: nn.Module, place: Stage, count: int) -> float:
    """Seconds of a forward and a backward pass of a stage, in the mean of `count`, with nothing to wait for."""
    tokens, targets = Random().batch(0, 0)
    given = torch.randn(FLOW.hidden)
    began = time.perf_counter()
    for _ in range(count):
        x = tokens if place.is_first else given.clone().requires_grad_()
        out = part(x)
        if place.is_last:
            loss_sum(out, targets).backward()
        else:
            out.backward(given)
    return (time.perf_counter() - began) / count


def ideal_step(schedule: str, micro_batches: int, parts: list[nn.Module], places: tuple[Stage, ...]) -> Spent:
    """A step by the schedule's timeline, from what each stage's passes take now."""
    costs = torch.zeros(stage_count(schedule, RANKS) + 1, dtype=torch.float64)
    count = max(2, micro_batches // 2)
    dist.barrier()
    began = time.process_time()
    for part, place in zip(parts, places, strict=True):
        costs[place.index] = passes_alone(part, place, count) / PASS_SLOTS
    costs[-1] = (time.process_time() - began) / count * micro_batches
    dist.all_reduce(costs)
    *stages, cpu = costs.tolist()
    return Spent(timeline(schedule, RANKS, micro_batches, stages).span, cpu)


def pipelined_step(passes: Pipelined, step: int) -> Spent:
    dist.barrier()
    began, cpu = time.perf_counter(), time.process_time()
    passes.run(step, 1.0)
    spent = torch.tensor(time.process_time() - cpu)
    dist.all_reduce(spent)
    return Spent(time.perf_counter() - began, spent.item())


@dataclass(frozen=True)
class Result:
    """Median seconds of a step, and of each step which part of the ideal it reached and of its CPU time computed."""

    schedule: str
    micro_batches: int
    seconds: float
    reached: list[float]
    computing: list[float]


def measure(rank: int, port: int, cases: list[tuple[str, int]], steps: int, results: mp.SimpleQueue) -> None:
    """All cases on one rank; rank 0 puts a Result for each."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=RANKS)
    for schedule, micro_batches in cases:
        layers = split_layers(model_costs(MODEL, LENGTH), stage_count(schedule, RANKS))
        places = held_stages(layers, schedule, RANKS, rank)
        engine = Gradients([filled(place) for place in places])
        passes = Pipelined(
            engine,
            places,
            schedule,
            flow=FLOW,
            batches=Random(),
            loss_sum=loss_sum,
            accumulation=micro_batches,
            group=dist.group.WORLD,
            device=torch.device("cpu"),
        )
        pipelined_step(passes, 0)
        times, reached, computing = [], [], []
        for step in range(steps):
            before = ideal_step(schedule, micro_batches, engine.parts, places)
            spent = pipelined_step(passes, step)
            after = ideal_step(schedule, micro_batches, engine.parts, places)
            times.append(spent.wall)
            reached.append((before.wall + after.wall) / 2 / spent.wall)
            computing.append((before.cpu + after.cpu) / 2 / spent.cpu)
        if rank == 0:
            results.put(Result(schedule, micro_batches, statistics.median(times), reached, computing))
    dist.destroy_process_group()


def table(found: list[Result]) -> list[str]:
    lines = [
        "| schedule | micro-batches | bubble | tokens/s | reached of the ideal (range) | computing |",
        "|---|---|---|---|---|---|",
    ]
    for one in found:
        bubble = timeline(one.schedule, RANKS, one.micro_batches).bubble_share
        speed = one.micro_batches * BATCH * LENGTH / one.seconds
        reached = f"{statistics.median(one.reached):.3f} ({min(one.reached):.2f} to {max(one.reached):.2f})"
        computing = f"{statistics.median(one.computing):.3f}"
        lines.append(
            f"| {one.schedule} | {one.micro_batches} | {bubble:.1%} | {speed:.0f} | {reached} | {computing} |"
        )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--schedule", nargs="+", default=["1f1b"], choices=list(SCHEDULES))
    parser.add_argument("--micro-batches", nargs="+", type=int, default=[4, 8, 16])
    parser.add_argument("--steps", type=int, default=9)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    cases = [(schedule, count) for schedule in args.schedule for count in args.micro_batches]
    context = mp.get_context("spawn")
    results = context.SimpleQueue()
    mp.spawn(measure, (port, cases, args.steps, results), nprocs=RANKS)
    text = "\n".join(table([results.get() for _ in cases]))
    print(text)
    if args.out:
        args.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
