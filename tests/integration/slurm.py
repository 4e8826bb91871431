"""A real SLURM on a lab: slurmctld on host1, which is the login node, and a slurmd on each of the other hosts.

`slurm` is a fixture for a test module, on top of `lab` (tests/integration/lab.py). Without Debian's packages the tests
are skipped with the reason; with CI=true that is a failure (scripts/test installs them).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from integration.lab import Lab

PACKAGES = ("munge", "slurm-client", "slurmctld", "slurmd", "libslurm-dev")
CONTAINERS = Path(__file__).with_name("container.c")
UP_LIMIT_S = 60.0

CONF = """\
ClusterName=lab
SlurmctldHost=host1
AuthType=auth/munge
CredType=cred/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation=/run/slurm/state
SlurmdSpoolDir=/run/slurm/spool
SlurmctldPidFile=/run/slurm/ctld.pid
SlurmdPidFile=/run/slurm/slurmd.pid
SlurmctldLogFile=/run/slurm/ctld.log
SlurmdLogFile=/run/slurm/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
SchedulerParameters=sched_interval=1,sched_min_interval=100000,bf_interval=2,batch_sched_delay=0
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
JobCompType=jobcomp/none
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
JobRequeue=1
KillWait=3
ReturnToService=2
GresTypes=gpu
{nodes}
PartitionName=low Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1 PreemptMode=REQUEUE GraceTime=15
PartitionName=high Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=10 PreemptMode=OFF
"""
START = """\
mkdir -p /run/slurm/state /run/slurm/spool /run/munge /etc/slurm
chown munge:munge /run/munge && chmod 755 /run/munge
for i in 0 1 2 3; do mknod /run/nvidia$i c 1 3 2>/dev/null; done
cp {shared}/slurm/*.conf /etc/slurm/
setpriv --reuid=munge --regid=munge --clear-groups /usr/sbin/munged
{daemon}
"""


class Slurm:
    """A running cluster. Commands run on the login node as user trainer, in `folder`, which all hosts see."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.folder = Path(lab.dir) / "shared"

    def start(self, nodes: dict[int, str]) -> None:
        """Start the daemons; nodes: host number -> its line in slurm.conf after the name."""
        conf = self.folder / "slurm"
        conf.mkdir()
        lines = "\n".join(f"NodeName=host{k} {line} State=UNKNOWN" for k, line in nodes.items())
        (conf / "slurm.conf").write_text(CONF.format(nodes=lines))
        (conf / "gres.conf").write_text("".join(
            f"NodeName=host{k} Name=gpu File=/run/nvidia[0-{int(line.partition('gpu:')[2]) - 1}]\n"
            for k, line in nodes.items() if "gpu:" in line
        ))  # fmt: skip
        plugin = conf / "container.so"
        subprocess.run(["gcc", "-shared", "-fPIC", "-o", plugin, CONTAINERS], check=True, timeout=60)
        (conf / "plugstack.conf").write_text(f"required {plugin}\n")
        (conf / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n")
        daemons = {1: "slurmctld", **dict.fromkeys(nodes, "slurmd")}
        with ThreadPoolExecutor() as pool:
            list(
                pool.map(
                    lambda k: self.lab.ssh(k, START.format(shared=self.folder, daemon=daemons[k]), "root"),
                    daemons,
                )
            )
        limit = time.monotonic() + UP_LIMIT_S
        while self.run("sinfo -h -N -p low -o %t").split() != ["idle"] * len(nodes):
            assert time.monotonic() < limit, self.lab.ssh(1, "sinfo; tail -5 /run/slurm/*.log", user="root")
            time.sleep(0.1)

    def run(self, command: str) -> str:
        """The output of a shell command on the login node."""
        return self.lab.ssh(1, f"cd {self.folder} && {command}")

    def job(self, options: str, command: str, limit_s: float = UP_LIMIT_S) -> str:
        """What a batch job has written, once it has ended. (sbatch --wait looks every few seconds only.)"""
        job = self.run(f"sbatch --parsable -o job.log {options} --wrap '{command}'")
        limit = time.monotonic() + limit_s
        while self.state(job) not in ("", "COMPLETED", "FAILED"):
            assert time.monotonic() < limit, self.run("squeue -l")
            time.sleep(0.1)
        return (self.folder / "job.log").read_text()

    def state(self, job: str) -> str:
        """A job's state by squeue; "" once it is gone."""
        return self.run(f"squeue -h -j {job} -o %T 2>/dev/null || true").strip()


def why_no_slurm() -> str | None:
    """What this machine lacks for a cluster, if anything. The configuration above is for what Debian 12 has."""
    for name in ("munged", "srun", "slurmctld", "slurmd", "gcc"):
        if shutil.which(name, path="/usr/sbin:/usr/bin") is None:
            return f"needs {name}: scripts/debian-packages {' '.join(PACKAGES)}"
    return (
        None if Path("/usr/include/slurm/spank.h").exists() else "needs libslurm-dev: scripts/debian-packages"
    )


@pytest.fixture(scope="module")
def slurm(lab: Lab) -> Slurm:
    reason = why_no_slurm()
    if reason and os.environ.get("CI") == "true":
        pytest.fail(reason)
    if reason:
        pytest.skip(reason)
    made = Slurm(lab)
    made.start({2: "CPUs=4 RealMemory=2000 Gres=gpu:4", 3: "CPUs=4 RealMemory=2000 Gres=gpu:2"})
    return made
