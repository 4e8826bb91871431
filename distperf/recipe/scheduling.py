"""The section of a recipe that says what a job of SLURM's asks for, and how a run behaves inside one."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from distperf.recipe.kinds import choice, flag, or_null, text, whole
from distperf.recipe.launching import ShellLine
from distperf.recipe.sections import Count, CountOrNull, Section

Word = Annotated[str | None, or_null(text("a word", r"[^\s\0]+"))]
TIME = r"[0-9]+(:[0-9]{1,2}){0,2}|[0-9]+-[0-9]{1,2}(:[0-9]{1,2}){0,2}|UNLIMITED"
Time = Annotated[str | None, or_null(text("a time: minutes, HH:MM:SS or D-HH:MM:SS", TIME))]
Option = Annotated[str, text("an option of sbatch: --exclusive", r"--?[^\n\0]+")]
ContainerOption = Annotated[str, text("an option of pyxis: --container-writable", r"--[a-z][^\n\0]+")]
Mount = Annotated[str, text("a mount, FROM:TO or FROM:TO:FLAGS", r"[^,:\s\0]+:/[^,:\s\0]*(:[^,:\s\0]+)?")]


class ContainerSection(Section):
    """A container for ranks, by pyxis, with `python3` inside, and for training torch. distperf leads from outside."""

    image: Word = Field(
        default=None,
        description="As pyxis takes it: nvcr.io#nvidia/pytorch:24.05-py3, or the path of a .sqsh file. null: none.",
    )
    mounts: tuple[Mount, ...] = Field(
        default=(),
        description="Folders that are seen inside: /data:/data:ro. launch.workdir is too, at its own path, where no "
        "mount covers it.",
    )
    options: tuple[ContainerOption, ...] = Field(
        default=(), description="More of pyxis's options: --container-writable, --no-container-mount-home."
    )


class SlurmSection(Section):
    """What `distperf sbatch` asks of SLURM. What is null is left to the cluster.

    `agents` and `container` count in any job.
    """

    partition: Word = Field(default=None, description="Partition, or several with commas.")
    account: Word = Field(default=None, description="Account that the job is charged to.")
    qos: Word = Field(default=None, description="Quality of service.")
    time: Time = Field(
        default=None,
        description="Time limit of one job; a run may take several (requeue). 90, 12:00:00, 2-00:00:00.",
    )
    nodes: Count = Field(default=1, description="Nodes.")
    gpus: CountOrNull = Field(
        default=None,
        description="GPUs of each node: one rank each. null: a CPU node, with launch.nproc ranks (auto: 1).",
    )
    cpus: CountOrNull = Field(default=None, description="CPUs of each rank.")
    mem: Word = Field(
        default=None, description="Memory of each node, as SLURM writes it: 200G; 0: all of it."
    )
    constraint: Word = Field(default=None, description="Features that nodes must have.")
    extra: tuple[Option, ...] = Field(
        default=(),
        description="More options of sbatch, each as on its command line: --exclusive, --array=0-3.",
    )
    setup: tuple[ShellLine, ...] = Field(
        default=(),
        description="Shell lines of the batch script before the launch, on the first node; ranks on all nodes get the "
        "environment that they leave, as srun hands it on.",
    )
    signal: Annotated[str, choice("USR1", "USR2", "TERM")] = Field(
        default="USR1",
        description="Signal that the batch script asks for before the time limit. A run takes any of them in any job.",
    )
    signal_s: Annotated[int, whole(0, 65535)] = Field(
        default=120,
        description="Seconds before the time limit at which that signal has the run save and end with code 75; 0: no "
        "such signal. Long enough for a step and a checkpoint; SLURM may send it up to a minute early.",
    )
    requeue: Annotated[bool, flag()] = Field(
        default=True,
        description="Whether a job that ended with code 75 is queued again, and goes on as another attempt of its run; "
        "also whether SLURM may requeue it, after preemption or the loss of a node.",
    )
    agents: Annotated[str, choice("srun", "ssh")] = Field(
        default="srun",
        description="How nodes are reached from inside a job. srun needs no SSH between nodes; ssh where there is no "
        "srun, as in most containers.",
    )
    container: ContainerSection = Field(
        default_factory=ContainerSection,
        description="The container that ranks run in, in a job with agents: srun.",
    )
