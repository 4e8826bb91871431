"""Reducing and gathering over real ranks: right values, and the costs that the docstrings state."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from ranks import run_ranks

from distperf.parallel.collectives import Peers, start_gather, start_reduce
from distperf.parallel.scratch import Scratch

pytestmark = pytest.mark.slow

SHARD = 70_001  # more than one block, and odd


def full_of(rank: int, size: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(size * SHARD, generator=torch.Generator().manual_seed(rank)).to(dtype)


def count_sent_bytes() -> list[int]:
    """From now on, the bytes of every message this rank sends."""
    sent: list[int] = []
    send = dist.isend

    def isend(tensor: torch.Tensor, *args, **kwargs):
        sent.append(tensor.nbytes)
        return send(tensor, *args, **kwargs)

    dist.isend = isend
    return sent


def check_collectives() -> None:
    peers = Peers.of(dist.group.WORLD, torch.device("cpu"))
    sent = count_sent_bytes()
    for dtype in (torch.float32, torch.bfloat16):
        for out_dtype in {dtype, torch.float32}:
            check_reduce(peers, dtype, out_dtype, sent)
        check_gather(peers, dtype, sent)


def check_reduce(peers: Peers, dtype: torch.dtype, out_dtype: torch.dtype, sent: list[int]) -> None:
    fulls = [full_of(rank, peers.size, dtype) for rank in range(peers.size)]
    expected = peers.shard(fulls[0]).float()
    for full in fulls[1:]:
        expected = expected + peers.shard(full).float()
    scratch = Scratch(torch.device("cpu"), 0)
    for add in (False, True):
        sent.clear()
        out = torch.ones(SHARD, dtype=out_dtype)
        start_reduce(fulls[peers.rank], out, peers, scratch, add=add).wait()
        assert torch.equal(out, (expected + 1 if add else expected).to(out_dtype))
        assert sum(sent) == (peers.size - 1) * SHARD * dtype.itemsize
        assert scratch.bytes == (peers.size - 1) * SHARD * dtype.itemsize
    if dtype == out_dtype:
        own = peers.shard(fulls[peers.rank])
        start_reduce(fulls[peers.rank], own, peers, scratch).wait()
        assert torch.equal(own, expected.to(dtype))


def check_gather(peers: Peers, dtype: torch.dtype, sent: list[int]) -> None:
    expected = full_of(7, peers.size, dtype)
    full = torch.zeros_like(expected)
    peers.shard(full).copy_(peers.shard(expected))
    sent.clear()
    start_gather(full, peers).wait()
    assert torch.equal(full, expected)
    assert sum(sent) == (peers.size - 1) * SHARD * dtype.itemsize


def test_values_and_costs():
    """Sums are those of fp32 in rank order to the bit, gathers are exact, and both send what they say."""
    run_ranks(check_collectives, 3)


def fail_on_rank_one() -> None:
    if dist.get_rank() == 1:
        raise ValueError("out of cheese")
    dist.barrier()


def test_the_first_failing_rank_is_named():
    """run_ranks shows the traceback of the rank that failed, not of those that waited for it."""
    with pytest.raises(AssertionError, match=r"(?s)rank 1 of 2 failed first.*out of cheese"):
        run_ranks(fail_on_rank_one, 2)
