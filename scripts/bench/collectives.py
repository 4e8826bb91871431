"""Ways to reduce-scatter and all-gather a flat buffer on gloo, against its own collectives.

    python scripts/bench/collectives.py [--ranks 2 4] [--megabytes 24] [--repeats 9]

The way of `distperf.parallel.collectives` is "exchange". Medians of the time until all ranks are done.
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
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from distperf.parallel.collectives import Peers, start_gather, start_reduce
from distperf.parallel.scratch import Scratch


def ways(full: Tensor, size: int) -> dict[str, Callable[[], object]]:
    peers, scratch = Peers.of(dist.group.WORLD, full.device), Scratch(full.device, 0)
    shard, other = torch.empty(full.numel() // size, dtype=full.dtype), torch.empty_like(full)

    def reduce_by_all_to_all() -> None:
        dist.all_to_all_single(other, full)
        torch.sum(other.view(size, -1), 0, out=shard)

    def gather_by_all_to_all() -> None:
        other.view(size, -1).copy_(shard.expand(size, -1))
        dist.all_to_all_single(full, other)

    def gather_by_broadcasts() -> None:
        for work in [dist.broadcast(part, i, async_op=True) for i, part in enumerate(full.view(size, -1))]:
            work.wait()

    return {
        "all_reduce": lambda: dist.all_reduce(full),
        "reduce: reduce_scatter_tensor": lambda: dist.reduce_scatter_tensor(shard, full),
        "reduce: all_to_all_single + sum": reduce_by_all_to_all,
        "reduce: exchange": lambda: start_reduce(full, shard, peers, scratch).wait(),
        "gather: all_gather_into_tensor": lambda: dist.all_gather_into_tensor(full, shard),
        "gather: all_to_all_single": gather_by_all_to_all,
        "gather: broadcasts": gather_by_broadcasts,
        "gather: exchange": lambda: start_gather(full, peers).wait(),
    }


def rank_main(rank: int, size: int, port: int, options: argparse.Namespace) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(size))
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for dtype in (torch.float32, torch.bfloat16):
        full = torch.zeros(options.megabytes * 2**20 // 4, dtype=dtype)
        for name, way in ways(full, size).items():
            times = []
            for _ in range(options.repeats):
                dist.barrier()
                start = time.perf_counter()
                way()
                dist.barrier()
                times.append(time.perf_counter() - start)
            if rank == 0:
                print(
                    f"| {size} | {str(dtype)[6:]} | {name} | {statistics.median(times) * 1e3:.1f} |",
                    flush=True,
                )
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", nargs="+", type=int, default=[2, 4])
    parser.add_argument(
        "--megabytes", type=int, default=24, help="of the buffer in fp32; bf16 has as many elements"
    )
    parser.add_argument("--repeats", type=int, default=9)
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    print("| ranks | dtype | way | ms |\n|---|---|---|---|", flush=True)
    for size in options.ranks:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            port = listener.getsockname()[1]
        mp.spawn(rank_main, (size, port, options), size)


if __name__ == "__main__":
    main()
