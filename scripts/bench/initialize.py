"""What distperf.initialize costs: a step of its engine against the same step written by hand with FSDP2.

    scripts/bench/initialize.py [--ranks 2] [--width 512] [--layers 6] [--steps 30]

By hand: `fully_shard` on every block and the model, clip_grad_norm_, AdamW (fused), zero_grad; for stage 2 without
resharding after forward, as torch's documentation has it. The two take turns, step by step; ratios are medians
over neighbouring steps, above 1 where initialize is faster.
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.fsdp import fully_shard

import distperf

BATCH, LENGTH, VOCAB, CLIP, LR = 4, 128, 1024, 1.0, 1e-3


def main() -> None:
    parser = argparse.ArgumentParser()
    for name, default in (("ranks", 2), ("width", 512), ("layers", 6), ("steps", 30)):
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), OMP_NUM_THREADS="1")
    mp.spawn(rank_main, (args,), nprocs=args.ranks)


def rank_main(rank: int, args: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=args.ranks)
    for stage in (2, 3):
        loops = [by_hand(args, stage), by_engine(args, stage)]
        for step in loops:
            timed(step)
        pairs = [[timed(step) for step in loops] for _ in range(args.steps)]
        if rank == 0:
            wall = [statistics.median(pair[at][0] for pair in pairs) for at in (0, 1)]
            ratios = [statistics.median(hers[k] / ours[k] for hers, ours in pairs) for k in (0, 1)]
            print(
                f"ZeRO-{stage}: by hand {1000 * wall[0]:.1f} ms a step, initialize {1000 * wall[1]:.1f} ms; ratio "
                f"{ratios[0]:.3f} (CPU time {ratios[1]:.3f})",
                flush=True,
            )
    dist.destroy_process_group()


def timed(step: Callable[[], object]) -> tuple[float, float]:
    """Seconds of a step, and of CPU in this rank."""
    dist.barrier()
    began, computed = time.perf_counter(), time.process_time()
    step()
    return time.perf_counter() - began, time.process_time() - computed


def build(args: argparse.Namespace) -> nn.Module:
    sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "nanogpt"))
    from model import GPT

    torch.manual_seed(1)
    return GPT(VOCAB, LENGTH, args.width, args.layers, args.width // 64)


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    return tuple(torch.randint(VOCAB, (2, BATCH, LENGTH)))


def by_hand(args: argparse.Namespace, stage: int) -> Callable[[], object]:
    model = build(args)
    for block in model.blocks:
        fully_shard(block, reshard_after_forward=stage == 3)
    fully_shard(model, reshard_after_forward=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, fused=True)

    def step() -> None:
        loss = model(*batch())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad()
        loss.item()

    return step


def by_engine(args: argparse.Namespace, stage: int) -> Callable[[], object]:
    model = build(args)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, fused=True)
    engine = distperf.initialize(
        model, optimizer, {"parallel": {"zero": stage}, "train": {"grad_clip": CLIP}}
    )

    def step() -> None:
        engine.backward(engine(*batch()))
        engine.step()

    return step


if __name__ == "__main__":
    main()
