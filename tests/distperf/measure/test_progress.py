"""What ranks report of their steps."""

from __future__ import annotations

import json
import os
import time

import pytest

from distperf.contract import METRICS, Reporter
from distperf.measure.peaks import peak_flops_per_s
from distperf.measure.progress import Progress, StepResult, Workload

WORKLOAD = Workload(steps=1000, positions=100, flops_per_token=1000, world_size=2, peak_flops_per_s=1e6)
RESULT = StepResult(loss=1.2345678901234567, grad_norm=0.1, lr=1e-3, tokens=90)


def progress(rank: int, **changes) -> tuple[Progress, int]:
    read, write = os.pipe()
    return Progress(Reporter(write), rank, 2, WORKLOAD), read


def records(read: int) -> list[dict]:
    return [json.loads(line) for line in os.read(read, 1 << 16).splitlines()]


def test_rank_0_sends_metrics_unrounded_and_all_send_progress(capsys):
    """The keys that scripts rely on; floats come back to the last bit."""
    lead, read = progress(0)
    lead.step(7, RESULT, step_s=0.5)
    step, metrics = records(read)
    assert step == {"kind": "progress", "step": 7}
    assert metrics["loss"] == RESULT.loss
    assert (metrics["tokens"], metrics["tokens_seen"], metrics["tokens_per_s"]) == (90, 90, 180.0)
    assert metrics["mfu"] == pytest.approx(100 * 1000 / 0.5 / 2 / 1e6)
    assert metrics.keys() == {"kind", *METRICS} - {"eval_loss", "eval_tokens", "eval_s"}
    other, read = progress(1)
    other.step(7, RESULT, step_s=0.5)
    assert [record["kind"] for record in records(read)] == ["progress"]
    assert capsys.readouterr().out.count("\n") == 1


def test_lines_are_calm_but_the_last_step_is_always_shown(capsys):
    """Steps faster than a second share a line."""
    lead, _ = progress(0)
    for step in (1, 2, 3, 1000):
        lead.step(step, RESULT, step_s=0.5)
    assert [line.split()[1] for line in capsys.readouterr().out.splitlines()] == ["1/1000", "1000/1000"]


def test_bookkeeping_is_cheap():
    """Under 2 % of a step of 20 ms, the smallest that anyone would train with."""
    lead, read = progress(0)
    took = []
    for step in range(1, 50):
        began = time.perf_counter()
        lead.step(step, RESULT, step_s=0.5)
        took.append(time.perf_counter() - began)
        os.read(read, 1 << 16)
    assert min(took) < 0.02 * 0.02


def test_peaks_are_known_by_name():
    """MFU is reckoned in bf16 against the device's dense peak, and unknown devices have none."""
    assert peak_flops_per_s("NVIDIA H200", "bf16") == 989e12
    assert peak_flops_per_s("NVIDIA L40S", "bf16") == 362e12
    assert peak_flops_per_s("NVIDIA H200", "fp32") is None
    assert peak_flops_per_s("cpu", "bf16") is None
