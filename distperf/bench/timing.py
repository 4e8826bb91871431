"""How long something takes: medians, of as many times as a short while allows."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

WHILE_S = 0.25
LEAST, MOST = 3, 30


def settle(device: torch.device) -> None:
    """Wait for what a device has been told to do."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def once(action: Callable[[], object], device: torch.device) -> float:
    """Seconds of one time."""
    settle(device)
    began = time.perf_counter()
    action()
    settle(device)
    return time.perf_counter() - began


def typical(action: Callable[[], object], device: torch.device) -> float:
    """The median, after a first time that does not count."""
    first = once(action, device)
    return statistics.median(once(action, device) for _ in range(times(first)))


def typical_together(
    action: Callable[[], object], device: torch.device, group: dist.ProcessGroup | None
) -> float:
    """The median of the slowest rank of a group that does it together.

    Cost: an all-reduce of 8 bytes before and after.
    """
    once(action, device)  # connections are made, memory is touched
    count = times(_slowest(once(action, device), device, group))
    return _slowest(statistics.median(once(action, device) for _ in range(count)), device, group)


def times(seconds: float) -> int:
    """How often something that takes so long is done."""
    return max(LEAST, min(MOST, int(WHILE_S / max(seconds, 1e-9))))


def _slowest(seconds: float, device: torch.device, group: dist.ProcessGroup | None) -> float:
    found = torch.tensor(seconds, dtype=torch.float64, device=device)
    dist.all_reduce(found, dist.ReduceOp.MAX, group)
    return float(found)
