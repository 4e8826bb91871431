"""Warm start as a user sees it: `distperf launch` with torch, forked ranks against exec'ed ones."""

from __future__ import annotations

import json

import pytest
from integration.launches import RECIPE, gone, start

pytestmark = pytest.mark.slow

SHOW = """
import ctypes, json, os, random, sys
import numpy, torch
import torch.distributed as dist

draws = [random.random(), float(numpy.random.rand()), float(torch.rand(1))]
random.seed(1), numpy.random.seed(1), torch.manual_seed(1)
seeded = [random.random(), float(numpy.random.rand()), float(torch.rand(1))]
with open("/proc/self/maps") as maps:
    library = next((line.split(None, 5)[5].strip() for line in maps if "openblas" in line), None)
blas = library and ctypes.CDLL(library).scipy_openblas_get_num_threads64_()
dist.init_process_group("gloo")
total = torch.ones(3)
dist.all_reduce(total)
seen = {
    "draws": draws, "seeded": seeded, "threads": torch.get_num_threads(), "blas": blas, "total": total.tolist(),
    "forked": "nursery.py" in open("/proc/self/cmdline").read(), "bad_fork": torch.cuda._is_in_bad_fork(),
}
with open(f"out-{dist.get_rank()}.json", "w") as out:
    json.dump(seen, out)
dist.destroy_process_group()
"""


def show(folder, *flags, ranks=2):
    (folder / "show.py").write_text(SHOW)
    run = start(folder, "--script", "show.py", "--nproc", str(ranks), *flags)
    _, err = run.end()
    assert run.process.returncode == 0, err
    assert gone(run.token(), within_s=1)
    return [json.loads((folder / f"out-{rank}.json").read_text()) for rank in range(ranks)]


def test_seeds_and_threads(tmp_path):
    """Unseeded draws differ from rank to rank, seeded ones are those of an exec'ed rank; so are all thread counts."""
    flags = ("--set", "launch.env={OMP_NUM_THREADS: 2}")
    warm = show(tmp_path, *flags)
    cold = show(tmp_path, *flags, "--set", "launch.warm_start=false")
    assert [rank["forked"] for rank in warm + cold] == [True, True, False, False]
    for kind in range(3):
        assert len({rank["draws"][kind] for rank in warm}) == 2
    for key in ("seeded", "threads", "blas", "total", "bad_fork"):
        assert [rank[key] for rank in warm] == [rank[key] for rank in cold], key
    assert warm[0]["threads"] == 2


def test_a_single_rank_starts_directly(tmp_path):
    """auto: one rank gains nothing from a process between; true: it is forked all the same."""
    assert not show(tmp_path, ranks=1)[0]["forked"]
    assert show(tmp_path, "--set", "launch.warm_start=true", ranks=1)[0]["forked"]


SHORT = """
import sys
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

def main():
    dist.init_process_group("gloo")
    model = DistributedDataParallel(torch.nn.Linear(2, 1))  # holds on to the group
    sys.setswitchinterval(1000)  # nothing but a call that waits frees the interpreter's lock
    dist.all_reduce(torch.ones(4))
    if "destroy" in sys.argv:
        dist.destroy_process_group()

main()
"""


@pytest.mark.parametrize("end", ["destroy", "leave"])
def test_a_script_that_ends_right_after_a_collective_ends(tmp_path, end):
    """Torch would hang, or abort, where a thread of gloo's still wants the interpreter's lock."""
    (tmp_path / "short.py").write_text(SHORT)
    run = start(
        tmp_path,
        "--script",
        "short.py",
        "--nproc",
        "4",
        "--set",
        "launch.env={OMP_NUM_THREADS: 1}",
        "--",
        end,
    )
    _, err = run.end()
    assert run.process.returncode == 0, err


FAILING = """
import os, signal
import torch
import torch.distributed as dist
import distperf

attempt = int(os.environ["DISTPERF_ATTEMPT"])
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
assert total == 2
if dist.get_rank() == 0:
    distperf.report(step=attempt, loss=1.0)
dist.barrier()
if attempt <= 20 and dist.get_rank() == attempt % 2:
    os.kill(os.getpid(), signal.SIGKILL)
dist.barrier()
"""


def test_20_restarts_of_20(tmp_path):
    """A rank is killed in each of 20 attempts: every restart meets, and the 21st attempt ends well."""
    (tmp_path / "failing.py").write_text(FAILING)
    run = start(tmp_path, "--script", "failing.py", "--nproc", "2", "--set", "launch.max_restarts=20")
    _, err = run.end()
    assert run.process.returncode == 0, err
    assert run.status()["attempt"] == 21
    assert gone(run.token(), within_s=1)


def test_training_gives_the_same_losses(tmp_path):
    """Forked or exec'ed: the bundled runtime's losses are the same to the last bit."""
    losses = []
    for warm in ("auto", "false"):
        folder = tmp_path / warm
        folder.mkdir()
        (folder / "recipe.yaml").write_text(RECIPE)
        run = start(folder, "recipe.yaml", "--nproc", "2", "--set", f"launch.warm_start={warm}")
        _, err = run.end()
        assert run.process.returncode == 0, err
        losses.append(run.losses())
    assert losses[0] == losses[1]
    assert len(losses[0]) == 20
