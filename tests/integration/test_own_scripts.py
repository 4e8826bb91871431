"""Scripts that were written for torchrun, on two nodes of two ranks, unchanged: the result is torchrun's."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from integration.launches import distperf
from integration.slurm import slurm

__all__ = ["slurm"]

pytestmark = [pytest.mark.lab, pytest.mark.slow, pytest.mark.timeout(600)]
LAB_HOSTS = 3
LIMIT_S = 300  # four ranks import much, on a machine that may be busy
SCRIPTS = Path(__file__).parents[1] / "scripts"
NAMES = ("ddp.py", "accelerated.py", "hf_trainer.py", "lightning_trainer.py")
NEEDS = {
    "accelerated.py": "accelerate", "hf_trainer.py": "transformers", "lightning_trainer.py": "pytorch_lightning",
}  # fmt: skip
FINAL = re.compile(r"final loss ([0-9.]+)")
# What a script's arithmetic may depend on is the same everywhere: threads, and the order of a reduction.
SETTINGS = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


@cache
def by_torchrun(name: str) -> str:
    """The final loss, as printed, of four ranks that torchrun starts."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4"]
    done = subprocess.run(
        [*command, SCRIPTS / name], env={**os.environ, **SETTINGS}, capture_output=True, text=True, timeout=LIMIT_S
    )  # fmt: skip
    return final(done.stdout + done.stderr)


def final(said: str) -> str:
    found = FINAL.findall(said)
    assert len(found) == 1, said
    return found[0]


@pytest.fixture
def place(slurm, request):
    """A folder that all hosts see, with the script and nothing else."""
    name = request.node.callspec.params["name"]
    pytest.importorskip(NEEDS.get(name, "torch"))
    folder = slurm.folder / "scripts"
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)  # ranks run as the lab's own user
    shutil.copy(SCRIPTS / name, folder)
    yield folder
    shutil.rmtree(folder)


@pytest.mark.parametrize("name", NAMES)
def test_over_ssh(place, lab, name, monkeypatch):
    """Hosts of a hostfile."""
    monkeypatch.setenv("DISTPERF_SSH_CONFIG", str(lab.dir / "ssh_config"))
    (place / "hosts").write_text("host2 slots=2\nhost3 slots=2\n")
    env = [f"--set=launch.env.{key}={value}" for key, value in SETTINGS.items()]
    done = distperf(place, "launch", "--script", name, "--hosts", "hosts", *env, limit_s=LIMIT_S)
    assert done.returncode == 0, done.stderr
    assert final(done.stdout) == by_torchrun(name)


@pytest.mark.parametrize("name", NAMES)
def test_in_a_job(place, slurm, name):
    """Hosts and slots of SLURM's, agents by srun."""
    settings = " ".join(f"{key}={value}" for key, value in SETTINGS.items())
    launch = f"cd scripts && {settings} {sys.executable} -m launcher launch --script {name}"
    assert final(slurm.job("-N2 --ntasks-per-node=2", launch, LIMIT_S)) == by_torchrun(name)
