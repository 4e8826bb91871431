"""The options of srun by which pyxis starts an agent in a container. Pure.

An agent needs nothing installed but python3, so that images are used as they are; distperf itself, sbatch, srun and
scontrol stay outside.
"""

from __future__ import annotations

from pathlib import PurePath

from distperf.recipe.scheduling import ContainerSection
from launcher.errors import UsageError


def options(container: ContainerSection, workdir: str, saved: str | None) -> list[str]:
    """The options; none without an image.

    workdir: where ranks run. saved: the folder of checkpoints, which must outlive the container. Raises UsageError
    where it would not.
    """
    if container.image is None:
        return []
    mounts = list(container.mounts)
    if not _covers(mounts, workdir):
        if set(workdir) & set(",: "):
            raise UsageError(
                f"launch.workdir, {workdir}, cannot be mounted into a container: pyxis takes no path with a comma, a "
                "colon or a space; mount it elsewhere with slurm.container.mounts, or launch from another folder"
            )
        mounts.append(f"{workdir}:{workdir}")
    if saved is not None and not _covers(mounts, saved):
        raise UsageError(
            f"checkpoints go to {saved}, which is in the container only and would vanish with it: mount a folder "
            f"above it with slurm.container.mounts (there are {', '.join(mounts)}), or set checkpoint.dir"
        )
    return [
        f"--container-image={container.image}",
        f"--container-mounts={','.join(mounts)}",
        *container.options,
    ]


def _covers(mounts: list[str], path: str) -> bool:
    """Whether the path, as it is inside, is in one of the mounts."""
    return any(PurePath(path).is_relative_to(mount.split(":")[1]) for mount in mounts)
