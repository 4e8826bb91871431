"""Agents inside an allocation of SLURM's, one srun a node: no SSH between nodes, and the job's own CPUs and GPUs."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence

from launcher.errors import UsageError
from launcher.slurm.allocation import Allocation, scrubbed, srun
from launcher.transport.command import CommandTransport


class SlurmTransport(CommandTransport):
    """Starts agents by srun. options: more of srun's. Raises UsageError where there is none."""

    def __init__(self, allocation: Allocation, options: Sequence[str] = ()) -> None:
        if shutil.which("srun") is None:
            raise UsageError(
                f"this is job {allocation.key} of SLURM's, but there is no srun on PATH (a container?): start agents "
                "by SSH with slurm.agents: ssh, or put srun and its configuration into the container"
            )
        super().__init__(lambda host: srun(allocation, host.name, options), scrubbed(os.environ))
