"""Agents inside an allocation of SLURM's, one srun a node: no SSH between nodes, and the job's own CPUs and GPUs.

An srun lives as long as its agent. When it ends, SLURM ends what the agent has started: a link cannot come back.
"""

from __future__ import annotations

import os
import shutil

from launcher.errors import BootstrapFailed, UsageError
from launcher.hostfile import Host
from launcher.slurm.allocation import Allocation, scrubbed, srun
from launcher.transport import bundle
from launcher.transport.local import LocalStream, start


class SlurmTransport:
    """Starts agents by srun. Raises UsageError where there is none."""

    link_may_return = False

    def __init__(self, allocation: Allocation) -> None:
        if shutil.which("srun") is None:
            raise UsageError(
                f"this is job {allocation.key} of SLURM's, but there is no srun on PATH (a container?): start agents "
                "by SSH with slurm.agents: ssh, or put srun and its configuration into the container"
            )
        self._job = allocation
        self._env = scrubbed(os.environ)

    def connect(self, host: Host) -> LocalStream:
        """See Transport."""
        try:
            return start([*srun(self._job, host.name), *bundle.argv(host.python or "python3")], self._env)
        except OSError as error:
            raise BootstrapFailed(host.name, f"cannot start {error.filename}: {error.strerror}") from None

    def describe(self, host: Host) -> str:
        """See Transport."""
        return " ".join([*srun(self._job, host.name), "bash"])

    def close(self) -> None:
        """Nothing is shared."""
