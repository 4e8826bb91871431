"""Batches read ahead by processes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psutil
import pytest
import torch
from train_program import SYNTHETIC, data_spec

from distperf.data.loader import Loader
from distperf.data.opening import open_samples
from distperf.errors import DataError, DatasetFailed, WorkerFailed
from distperf.recipe.runspec import DataSpec, TrainSpec

pytestmark = pytest.mark.slow


def make(
    workers: int, spec: DataSpec = SYNTHETIC, *, accumulation: int = 2, steps: int = 9, **changes
) -> Loader:
    train = TrainSpec(steps, 4 * accumulation, 4, accumulation, 1, None, False, 0)
    data = data_spec(**{**vars(spec), "workers": workers, **changes})
    return Loader(data, open_samples(data, 100).training, train, 0, 1)


def own(function: str, workers: int, **args) -> Loader:
    return make(workers, data_spec(factory=f"own_data:{function}", args=args, seq_len=4))


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("kind", ["synthetic", "rows"])
def test_any_number_of_workers_gives_the_same_batches(workers: int, kind: str):
    """In order to the run's end, after a resume in the middle, and when asked for out of order."""

    def loader(count: int) -> Loader:
        return make(count) if kind == "synthetic" else own("rows", count, noise=True)

    places = [(step, micro) for step in range(1, 10) for micro in (0, 1)]
    with closing(loader(0)) as plain, closing(loader(workers)) as ahead, closing(loader(workers)) as resumed:
        wanted = {place: plain.batch(*place) for place in places}
        resumed.stream.go_on(4, 32)
        for place in [*places, (2, 1), (1, 0), (1, 1)]:
            assert all(map(torch.equal, ahead.batch(*place), wanted[place]))
        for place in places[8:]:
            assert all(map(torch.equal, resumed.batch(*place), wanted[place]))


def test_a_batch_stays_when_the_next_ones_come():
    """A pipeline holds all micro-batches of a step at once."""
    with closing(make(1)) as ahead, closing(make(0)) as plain:
        held = [ahead.batch(step, 0)[0] for step in range(1, 8)]
        for step, inputs in enumerate(held, start=1):
            assert torch.equal(inputs, plain.batch(step, 0)[0])


def read_on(loader: Loader, first: int, stop: int) -> None:
    """Micro-batches first .. stop - 1 of the run, counted from 0."""
    for number in range(first, stop):
        loader.batch(number // 2 + 1, number % 2)


@pytest.fixture
def children() -> Iterator[set[int]]:
    """Those that were there before; none is left in addition."""
    before = {child.pid for child in psutil.Process().children()}
    yield before
    assert {child.pid for child in psutil.Process().children()} == before


def test_a_killed_worker_is_told(children: set[int]):
    """SIGKILL to one of two: the batch that it owes ends the run with its name and the signal."""
    with closing(make(2, steps=1000)) as loader:
        loader.batch(1, 0)
        (first, _) = sorted({child.pid for child in psutil.Process().children()} - children)
        os.kill(first, signal.SIGKILL)
        with pytest.raises(
            WorkerFailed, match=rf"data worker 1 of 2 \(process {first}\) was killed by SIGKILL"
        ):
            read_on(loader, 1, 20)


def test_a_stopped_worker_is_told(children: set[int]):
    """SIGSTOP: after worker_timeout_s the run fails rather than waits for ever."""
    with closing(make(1, steps=1000, worker_timeout_s=0.5)) as loader:
        loader.batch(1, 0)
        (worker,) = {child.pid for child in psutil.Process().children()} - children
        os.kill(worker, signal.SIGSTOP)
        with pytest.raises(WorkerFailed, match=r"data worker 1 of 1 .* has owed a batch for 0.5 s"):
            read_on(loader, 1, 20)


@pytest.mark.parametrize(
    ("fault", "kind", "said"),
    [
        ("raises", DatasetFailed, r"data worker \d of 2: data.factory own_data:bad, sample 7 failed"),
        ("short", DataError, r"data worker \d of 2: data.factory own_data:bad, sample 7: a list, \(2,\)"),
        ("hangs", WorkerFailed, "has owed a batch"),
    ],
)
def test_faults_of_a_dataset_come_through(
    children: set[int], capfd: pytest.CaptureFixture[str], fault, kind, said
):
    """An exception with the user's frames; a hang with the worker's stack in the rank's output."""
    data = data_spec(factory="own_data:bad", args={"fault": fault}, seq_len=4)
    with closing(make(2, data, steps=30, worker_timeout_s=1.0)) as loader, pytest.raises(DataError) as caught:
        read_on(loader, 0, 40)
    assert re.search(said, str(caught.value))
    assert caught.type is kind
    if fault == "raises":
        assert 'return row["missing"]' in str(caught.value)
    elif fault == "hangs":
        assert "in __getitem__" in capfd.readouterr().err


DYING = """
import os, signal, sys
sys.path[:0] = {path!r}
from test_prefetch import make
loader = make(3, steps=10**6)
loader.batch(1, 0)
import psutil
pids = [child.pid for child in psutil.Process().children()]
assert not any("/dev/shm" in open(f"/proc/{{pid}}/maps").read() for pid in pids)
print(*pids, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_nothing_is_left_of_a_rank_that_is_killed():
    """Workers die with it, and their memory has no name in the file system."""
    path = [str(Path(__file__).parent), *sys.path]
    ran = subprocess.run([sys.executable, "-c", DYING.format(path=path)], stdout=subprocess.PIPE, check=False)
    assert ran.returncode == -signal.SIGKILL
    pids = [int(word) for word in ran.stdout.split()]
    assert len(pids) == 3
    while any(
        psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE for pid in pids
    ):
        time.sleep(0.01)
