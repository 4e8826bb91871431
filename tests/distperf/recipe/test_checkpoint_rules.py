"""Rules about checkpoints: a best that never comes, a memory that keeps nothing."""

from __future__ import annotations

import pytest

BASE = """\
model: {preset: llama-1m}
data: {text: [a.txt], validation: 0.1}
train: {steps: 100, global_batch: 32}
"""


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (
            "checkpoint: {keep_best: eval_loss}",
            "there are no evaluations; give eval.every_steps, or take loss",
        ),
        (
            "checkpoint: {keep_best: eval_loss, every_steps: 50}\neval: {every_steps: 20}",
            "checkpoints are written every 50 steps and eval.every_steps, 20, does not divide that",
        ),
        ("checkpoint: {keep_best: loss, every_steps: 0}", "there is at most one checkpoint to choose from"),
        ("checkpoint: {keep_best: accuracy}", "it takes eval_loss or loss"),
        (
            "checkpoint: {memory: {every_steps: 5}}\noffload: {optimizer: nvme, path: /nvme}",
            "state is on drives because memory has no room",
        ),
        ("checkpoint: {memory: {copies: 2}}", "missing key checkpoint.memory.every_steps"),
        ("checkpoint: {memory: {every_steps: 5, dir: shm}}", "it takes an absolute path"),
    ],
)
def test_checkpoints_that_cannot_be(problems, more, words):
    """Each is refused with what to change."""
    (line,) = problems(BASE + more)
    assert words in line


@pytest.mark.parametrize(
    "more",
    [
        "checkpoint: {keep_best: loss}",
        "checkpoint: {keep_best: eval_loss, every_steps: 50}\neval: {every_steps: 25}",
        "checkpoint: {memory: {every_steps: 1, copies: 0, dir: /dev/shm}}",
    ],
)
def test_checkpoints_that_can_be(load, more):
    """These stand."""
    load(BASE + more)
