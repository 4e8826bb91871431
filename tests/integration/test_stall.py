"""Runs that stand still, as a user sees them: real ranks that block, stop, or skip what the others wait for."""

from __future__ import annotations

import os
import signal
import time

import pytest
from integration.launches import RECIPE, gone, start

pytestmark = pytest.mark.slow

QUICK = ("--set", "launch.stall_timeout_s=3", "--set", "launch.grace_s=3")
ONCE = ("--set", "launch.max_restarts=0")


def script(folder, text, *flags, ranks=3):
    (folder / "train.py").write_text(text)
    return start(folder, "--script", "train.py", "--nproc", str(ranks), *flags)


def failed(run):
    """What the status says of a run that has failed of a stall, and what was printed."""
    _, err = run.end()
    assert run.process.returncode == 1, err
    assert gone(run.token(), within_s=2)
    failure = run.status()["first_failure"]
    assert failure["cause"] == "stall"
    return failure, err


BLOCKS = """
import os, threading, time
import distperf

rank = int(os.environ["RANK"])
threading.Thread(target=lambda: [time.sleep(0.1) for _ in iter(int, 1)], daemon=True).start()

def wait_for_the_others():
    while True:
        time.sleep(0.1)

for step in range(1, 9):
    if step == 5 and rank == 0:
        open("empty").read()
    if step == 5:
        wait_for_the_others()
    distperf.report(step)
"""


def test_a_rank_that_reads_an_empty_fifo(tmp_path):
    """C17: side threads live, and the run is judged on steps: rank, step and line are named, equal stacks folded."""
    os.mkfifo(tmp_path / "empty")
    failure, err = failed(script(tmp_path, BLOCKS, *QUICK, *ONCE))
    line = BLOCKS.splitlines().index('        open("empty").read()') + 1
    assert (failure["rank"], failure["step"], failure["followers"]) == (0, 4, [1, 2])
    assert failure["message"].startswith(f"has not finished step 5, in {tmp_path}/train.py:{line} <module>")
    assert [group["ranks"] for group in failure["stacks"]] == ["1-2", "0"]
    assert "  ranks 1-2: in " in err
    assert " wait_for_the_others" in err


def test_a_stopped_rank(tmp_path):
    """SIGSTOP of a training rank: named as stopped, and the restart goes on from the newest checkpoint to the end."""
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    run = start(tmp_path, "recipe.yaml", "--nproc", "2", *QUICK, "--set", "train.steps=400",
                "--set", "checkpoint.every_steps=100")  # fmt: skip
    ranks = run.until(lambda status: status["step"] > 3)["ranks"]
    os.kill(ranks[1]["pid"], signal.SIGSTOP)
    _, err = run.end()
    assert run.process.returncode == 0, err
    failure = run.status()["first_failure"]
    assert (failure["cause"], failure["rank"], failure["attempt"]) == ("stall", 1, 1)
    assert "stopped by a signal (SIGSTOP" in failure["message"]
    assert "rank 1: stopped" in failure["message"] or "rank 0: in " in failure["message"]
    assert list(run.losses()) == list(range(1, 401))
    assert gone(run.token(), within_s=2)


SKIPS = """
import os, time
import torch.distributed as dist
import distperf
from distperf.requests import listen

def skip():
    time.sleep(60)

listen()  # as training does
dist.init_process_group("gloo")
for step in range(1, 9):
    if step == 3 and dist.get_rank() == 1:
        skip()
    dist.barrier()
    distperf.report(step)
"""


def test_a_rank_that_skips_a_collective(tmp_path):
    """The odd one out is named; the others are shown once, waiting in the barrier, which the flight recorder counts."""
    failure, _ = failed(script(tmp_path, SKIPS, *QUICK, *ONCE, "--set", "launch.warm_start=true"))
    assert (failure["rank"], failure["step"]) == (1, 2)
    assert " skip" in failure["message"]
    waiting = failure["stacks"][0]
    assert waiting["ranks"] == "0,2"
    assert "barrier" in waiting["stack"]
    assert waiting["collective"] == "barrier #3"


SILENT = "import time\ntime.sleep(float(__import__('sys').argv[1]))\n"


def test_a_script_without_steps_is_not_watched(tmp_path):
    """auto: silence is no stall where nothing was ever reported, and the launch says so."""
    run = script(tmp_path, SILENT, "--", "4", ranks=1)
    _, err = run.end()
    assert run.process.returncode == 0
    assert "watched for stalls from its first distperf.report on" in err


def test_a_silent_script_with_a_number(tmp_path):
    """A number counts from the last output; a process without a handler is never sent the signal, and is told of."""
    began = time.monotonic()
    failure, _ = failed(script(tmp_path, SILENT, *QUICK, *ONCE, "--", "60", ranks=1))
    assert time.monotonic() - began < 30
    assert failure["message"].startswith("stands still, no stack: the script's process has no handler")
    assert "no output for" in failure["message"]


PAUSES = """
import time
import distperf
from distperf.contract import reporter

for step in range(1, 6):
    distperf.report(step)
    time.sleep(0.2)
reporter().send("phase", phase="checkpoint")
time.sleep(7)
reporter().send("phase", phase="train")
distperf.report(6)
"""


def test_a_slow_checkpoint_is_no_stall(tmp_path):
    """A checkpoint has an allowance of its own, and is shown."""
    run = script(tmp_path, PAUSES, *QUICK, ranks=1)
    _, err = run.end()
    assert run.process.returncode == 0, err
    assert "a checkpoint" in err


def test_an_interrupt_while_stacks_are_taken(tmp_path):
    """Ctrl-C works at any moment of it: the run ends with 130 and nothing is left."""
    os.mkfifo(tmp_path / "empty")
    run = script(tmp_path, BLOCKS, *QUICK)
    run.until(lambda status: status["step"] == 4)
    deadline = time.monotonic() + 20
    while b'"Stalled"' not in (run.run / "events.jsonl").read_bytes() and time.monotonic() < deadline:
        time.sleep(0.01)
    run.process.send_signal(signal.SIGINT)
    run.end()
    assert run.process.returncode == 130
    assert gone(run.token(), within_s=2)
