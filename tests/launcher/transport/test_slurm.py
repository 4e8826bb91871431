"""Agents by srun: a program of that name at the real seam, which drops its options and starts what they are for."""

import pytest

from launcher.errors import BootstrapFailed, UsageError
from launcher.hostfile import Host
from launcher.nodes import Nodes
from launcher.slurm.allocation import allocation
from launcher.transport.slurm import SlurmTransport

JOB = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n1"}
SRUN = """#!/bin/sh
env >"$0.env"
while case $1 in -*) true;; *) false;; esac; do shift; done
exec "$@"
"""


@pytest.fixture
def srun(tmp_path, monkeypatch):
    path = tmp_path / "srun"
    path.write_text(SRUN)
    path.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    return path


def test_an_agent_answers(srun, monkeypatch):
    """The bootstrap goes through, and srun does not see the options that the job was given by variables."""
    monkeypatch.setenv("SLURM_NTASKS", "8")
    nodes = Nodes(SlurmTransport(allocation(JOB)))
    nodes.open_all([Host("n1", (0,))])
    assert nodes.facts["n1"]["cpus"] >= 1
    nodes.close()
    assert "SLURM_NTASKS" not in srun.with_name("srun.env").read_text()


def test_srun_that_refuses(srun):
    """What srun says is told with the node."""
    srun.write_text("#!/bin/sh\necho 'srun: error: Unable to create step' >&2\nexit 1\n")
    nodes = Nodes(SlurmTransport(allocation(JOB)))
    with pytest.raises(BootstrapFailed, match="Unable to create step"):
        nodes.open_all([Host("n1", (0,))])


def test_no_srun_d11(tmp_path, monkeypatch):
    """In a container without SLURM's commands the way out is told before anything starts."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match=r"slurm\.agents: ssh"):
        SlurmTransport(allocation(JOB))
