"""`python -m distperf.measure.alltoall`: one small exchange between ranks. Do they meet, does everything arrive?

`distperf check` starts it with one rank on each node. It tells its result as a record and its failure by its end.
"""

from __future__ import annotations

import time
from datetime import timedelta

import torch
import torch.distributed as dist

from distperf.contract import reporter
from distperf.errors import DistperfError
from distperf.process_group import Ranks, join, leave

NUMBERS = 1024  # int64 from each rank to each
MEET_LIMIT = timedelta(seconds=45)  # all ranks have imported torch by then


def main() -> None:
    """Meet, exchange, compare, tell. Raises DistperfError or torch's own error."""
    ranks = Ranks.from_env()
    device, _ = join(ranks, MEET_LIMIT)
    began = time.monotonic()
    wrong = exchanged_wrongly(ranks.rank, ranks.world_size, device)
    exchange_s = time.monotonic() - began
    if wrong:
        raise DistperfError(f"what came from ranks {wrong} is not what they sent")
    backend = dist.get_backend()
    leave()
    reporter().send(
        "event", event="all_to_all", backend=backend, ranks=ranks.world_size, exchange_s=exchange_s
    )


def exchanged_wrongly(rank: int, world_size: int, device: torch.device) -> list[int]:
    """Send every rank numbers that only this pair has; the ranks whose numbers came otherwise, or not summed up right.

    Cost: 8 KiB from each rank to each, then an all-reduce of 8 bytes; twice 8 KiB x world size of memory.
    """
    pairs = torch.arange(world_size, device=device)
    sent = (rank * world_size + pairs).repeat_interleave(NUMBERS)
    came = torch.empty_like(sent)
    dist.all_to_all_single(came, sent)
    good = (came.view(world_size, NUMBERS) == (pairs * world_size + rank).unsqueeze(1)).all(dim=1)
    total = torch.tensor(rank + 1, device=device)
    dist.all_reduce(total)
    if int(total) != world_size * (world_size + 1) // 2:
        return list(range(world_size))
    return [int(other) for other in pairs[~good]]


if __name__ == "__main__":
    main()
