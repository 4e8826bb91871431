"""`python -m distperf.bench.run`: one rank of `distperf bench`. Measures what it was told to, and tells its agent."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from datetime import timedelta

import torch
import torch.distributed as dist

from distperf.bench import comm, compute, disk, divided
from distperf.contract import BENCH_ENV, RUN_ID_ENV, reporter
from distperf.errors import DistperfError
from distperf.process_group import Ranks, join, leave

TURNS = 2  # of everything, some time apart: what another program did to one of them is not the machine's
MEET_LIMIT = timedelta(minutes=5)  # a slow link's largest message is the longest that anybody waits


def main() -> None:
    """Meet, measure one thing after the other, tell. Raises DistperfError or torch's own error."""
    ranks = Ranks.from_env()
    device, _ = join(ranks, MEET_LIMIT)
    cases = TURNS * list(_cases(ranks, device))
    for done, case in enumerate(cases, start=1):
        dist.barrier()  # nobody measures while others still do something else
        reporter().send("event", event="bench", found=case(), share=done / len(cases))
    reporter().flush()
    leave()


def _cases(ranks: Ranks, device: torch.device) -> Iterator[compute.Case]:
    try:
        order = json.loads(os.environ[BENCH_ENV])
        parts, drives = order["parts"], order["drives"]
    except (KeyError, ValueError) as error:
        raise DistperfError(
            f"nothing to measure: {BENCH_ENV}: {error}. Start with `distperf bench`"
        ) from error
    if "matmul" in parts:
        yield from compute.cases(device)
    if "comm" in parts:
        yield from comm.cases(ranks, device)
        yield from divided.cases(ranks, device)
    if "disk" in parts and drives:
        yield from disk.cases(drives, os.environ[RUN_ID_ENV], ranks.rank)


if __name__ == "__main__":
    main()
