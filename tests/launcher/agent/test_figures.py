"""What nodes and ranks do, in numbers."""

from __future__ import annotations

import json

import pytest
from agents import LiveAgent

from launcher import protocol
from launcher.agent.figures import Node, StepTimes


def test_times_are_means_over_the_steps_since_they_were_told():
    """What is no number came from user code and is left out."""
    times = StepTimes()
    times.add(3, {"data": 0.1, "forward": 0.3, "odd": "x", "flag": True})
    times.add(3, {"data": 0.3})
    times.add(4, "nonsense")
    assert times.take() == {"3": {"steps": 2, "data": 0.2, "forward": 0.15}}
    assert times.take() == {}


def test_a_node_tells_shares_and_rates():
    """Of this machine: a busy share, memory in use, and no rate below zero."""
    node = Node()
    sum(range(2_000_000))
    found = node.look()
    assert 0 <= found["cpu"] <= 1
    assert 0 < found["memory_bytes"] < found["memory_total_bytes"]
    assert all(value >= 0 for value in found.values())


@pytest.mark.slow
def test_an_agent_tells_at_the_end_of_an_attempt():
    """However short it was: parts of steps by rank, and the node's own."""
    record = json.dumps({"kind": "progress", "step": 1, "parts": {"forward": 0.25}}) + "\n"
    code = f"import os; os.write(int(os.environ['DISTPERF_REPORT_FD']), {record.encode()!r})"
    with LiveAgent() as agent:
        agent.start(code, code)
        agent.to_idle()
        told = agent.got(protocol.Figures)  # more than one where it took longer than five seconds
    ranks = {rank: parts for figures in told for rank, parts in figures.ranks.items()}
    assert ranks == {str(rank): {"steps": 1, "forward": 0.25} for rank in (0, 1)}
    assert told[-1].node["memory_bytes"] > 0
