"""Where a step's time goes, and that a rank which waits is told from the one it waits for."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from ranks import run_ranks
from train_program import make_spec, train

from distperf.measure import stopwatch

CPU = torch.device("cpu")
WAIT_S = 0.3


def test_time_counts_for_the_innermost_part():
    """What lies in a part within a part is not the outer one's, and a lap holds everything since the last."""
    with stopwatch.running(CPU):
        began = time.perf_counter()
        with stopwatch.FORWARD, stopwatch.COMMUNICATION:
            time.sleep(0.05)
        spent = stopwatch.lap()
        took = time.perf_counter() - began
        assert spent["communication"] >= 0.05 > spent["forward"]
        assert sum(spent.values()) == pytest.approx(took, abs=0.01)
        assert "communication" not in stopwatch.lap()


def test_an_error_within_a_part_ends_it():
    """Time after it is no longer the part's."""
    with stopwatch.running(CPU):
        with pytest.raises(ValueError, match="odd"), stopwatch.DATA:
            raise ValueError("odd")
        stopwatch.lap()
        assert set(stopwatch.lap()) == {"other"}


def test_nothing_is_counted_outside_of_a_measured_run():
    """Parts may be entered anywhere: evaluation, export, a test."""
    with stopwatch.FORWARD:
        pass
    assert stopwatch.lap() == {}


def slow_on_rank_1() -> dict[str, float]:
    with stopwatch.running(CPU):
        dist.barrier()
        stopwatch.lap()
        with stopwatch.FORWARD:
            if dist.get_rank() == 1:
                time.sleep(WAIT_S)
        with stopwatch.COMMUNICATION:
            dist.all_reduce(torch.ones(8))
        return stopwatch.lap()


@pytest.mark.slow
def test_waiting_is_not_a_ranks_own_time():
    """The slow rank's forward pass is long, and the other rank's time goes to communication."""
    waited, slow = run_ranks(slow_on_rank_1, 2)
    assert slow["forward"] >= WAIT_S
    assert waited["forward"] < WAIT_S / 2
    assert waited["communication"] > WAIT_S / 2


@pytest.mark.slow
@pytest.mark.parametrize(("zero", "axes"), [(1, {}), (3, {}), (1, {"pp": 2})])
def test_every_rank_tells_the_parts_of_its_steps(tmp_path, zero, axes):
    """With each engine and in a pipeline; they come to what lies between two steps' reports."""
    spec = make_spec(tmp_path, world=2, zero=zero, steps=4, accumulation=2, axes=axes)
    if axes:
        spec = replace(spec, parallel=replace(spec.parallel, pp_layers=(1, 1)))
    ranks = train(spec)
    for rank in ranks.ranks:
        for record in rank.of("progress"):
            assert {"data", "forward", "backward", "communication", "optimizer"} <= record["parts"].keys()
    metrics = ranks.ranks[0].of("metrics")
    for line in metrics:
        parts = [line[f"{name}_s"] for name in ("data", "forward", "backward", "communication", "optimizer")]
        assert 0.5 * line["step_s"] < sum(parts) < line["step_s"] * 1.05 + 0.01
