"""Tasks on a thread of their own."""

from __future__ import annotations

import pytest

from distperf.parallel.background import Background


def test_tasks_run_in_order_and_failures_reach_whoever_waits():
    """Later tasks run after one that failed, whose error is raised where its end is waited for."""
    done: list[int] = []

    def lose_a_peer() -> None:
        raise RuntimeError("connection closed by peer")

    background = Background()
    waits = [
        background.submit(task) for task in (lambda: done.append(1), lose_a_peer, lambda: done.append(2))
    ]
    waits[2]()
    assert done == [1, 2]
    with pytest.raises(RuntimeError, match="connection closed"):
        waits[1]()
