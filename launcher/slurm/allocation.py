"""What SLURM's variables say of the allocation that we are in. Pure: no scontrol, so it works in a container too.

    SLURM_JOB_NODELIST          tr-16-cn-[001-002,004],n7            which nodes, in node order
    SLURM_TASKS_PER_NODE        2(x3),1                              counts a node, run-length coded
    SLURM_JOB_CPUS_PER_NODE     64(x2),32

Slots of a node: launch.nproc; else its GPUs, where the job says them per node or per task; else, where the job has GPUs
that are told in another way, as many as the node's agent sees; else tasks, where the user has said how many; else 1.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from launcher.errors import HostfileError, UsageError
from launcher.hostfile import Host
from launcher.nodeset import expand, fold

_RUN = re.compile(r"([0-9]+)(?:\(x([0-9]+)\))?")
_GPUS = re.compile(r"(?:[A-Za-z0-9_.-]+:)*([0-9]+)")
GPU_VARIABLES = (
    "SLURM_GPUS",
    "SLURM_GPUS_ON_NODE",
    "SLURM_JOB_GPUS",
    "SLURM_GPUS_PER_NODE",
    "SLURM_GPUS_PER_TASK",
)
REMEDY = "name the hosts yourself with --hosts"


@dataclass(frozen=True)
class Allocation:
    """A job's nodes. why: where their slots come from. task: which of several tasks of a step this process is."""

    job: str
    hosts: tuple[Host, ...]
    cpus: dict[str, int]  # by host; empty where SLURM does not say
    gpus: dict[str, int]  # by host, where the job's options say so
    why: str
    task: int = 0
    tasks: int = 1
    element: str = ""  # of a job array: ARRAY_TASK
    restarts: int = 0  # how often the job has been requeued

    @property
    def key(self) -> str:
        """What names exactly this job to scontrol and scancel: an element of an array, not the array."""
        return self.element or self.job

    @property
    def hostfile(self) -> str:
        """The hosts as a hostfile has them."""
        lines = [
            host.name if host.slots is None else f"{host.name} slots={len(host.slots)}" for host in self.hosts
        ]
        return "\n".join([f"# SLURM job {self.key}: {self.why}", *lines, ""])


def allocation(env: Mapping[str, str], nproc: int | None = None) -> Allocation | None:
    """The allocation that `env` tells of, or None outside of one.

    nproc: ranks per node where the recipe or the user says so. Raises UsageError for what cannot be used (heterogeneous
    jobs, lists that contradict each other) and HostfileError for a malformed nodelist.
    """
    job = env.get("SLURM_JOB_ID") or env.get("SLURM_JOBID")
    nodelist = env.get("SLURM_JOB_NODELIST") or env.get("SLURM_NODELIST")
    if not job or not nodelist:
        return None
    _refuse_heterogeneous(env, job)
    try:
        names = expand(nodelist)
    except HostfileError as error:
        raise HostfileError(f"SLURM_JOB_NODELIST of job {job}: {error}. Or {REMEDY}") from None
    _refuse_totals(env, job, len(names))
    counts, why = _slots(env, len(names), nproc)
    gpus = _gpus_per_node(env, len(names))
    hosts = tuple(
        Host(name, None if count is None else tuple(range(count)))
        for name, count in zip(names, counts, strict=True)
    )
    array, element = env.get("SLURM_ARRAY_JOB_ID"), env.get("SLURM_ARRAY_TASK_ID")
    return Allocation(
        job=job,
        hosts=tuple(host for host in hosts if host.slots is None or host.slots),
        cpus=dict(zip(names, _per_node(env, "SLURM_JOB_CPUS_PER_NODE", len(names)) or (), strict=False)),
        gpus=dict(zip(names, gpus, strict=False)),
        why=why,
        task=_number(env.get("SLURM_PROCID")) or 0,
        tasks=_number(env.get("SLURM_STEP_NUM_TASKS")) or 1,
        restarts=_number(env.get("SLURM_RESTART_COUNT")) or 0,
        element=f"{array}_{element}" if array and element else "",
    )


def fewer_cpus(job: Allocation | None, seen: Mapping[str, int]) -> list[str]:
    """A warning where agents may use fewer CPUs than the job has on their nodes. seen: CPUs by host."""
    few = {host: count for host, count in seen.items() if job is not None and count < job.cpus.get(host, 0)}
    if job is None or not few:
        return []
    host = next(iter(few))
    return [
        f"ranks on {fold(few)} see fewer CPUs than the job has there ({few[host]} of {job.cpus[host]} on {host}): "
        "something binds them"
    ]


def _refuse_heterogeneous(env: Mapping[str, str], job: str) -> None:
    size = _number(env.get("SLURM_HET_SIZE") or env.get("SLURM_PACK_SIZE")) or 1
    if size < 2:
        return
    groups = [env.get(f"SLURM_JOB_NODELIST_HET_GROUP_{n}") or env.get(f"SLURM_JOB_NODELIST_PACK_GROUP_{n}", "?")
              for n in range(size)]  # fmt: skip
    told = "; ".join(f"group {number}: {nodes}" for number, nodes in enumerate(groups))
    raise UsageError(
        f"job {job} is heterogeneous ({told}), and a run over all of its groups is not built: only the first would "
        f"train. Ask for one group, or {REMEDY}"
    )


def _slots(env: Mapping[str, str], nodes: int, nproc: int | None) -> tuple[list[int | None], str]:
    """Slots of each node (None: ask it), and why."""
    if nproc is not None:
        return [nproc] * nodes, f"launch.nproc is {nproc}"
    if gpus := _gpus_per_node(env, nodes):
        return list(gpus), "the GPUs that the job has on each node"
    tasks = _per_node(env, "SLURM_TASKS_PER_NODE", nodes)
    if any(env.get(name) for name in GPU_VARIABLES):
        return [None] * nodes, "the GPUs that each node's agent sees"
    if tasks and (env.get("SLURM_NTASKS") or env.get("SLURM_NTASKS_PER_NODE")):
        return list(tasks), "tasks of the node"
    return [1] * nodes, "a node without GPUs"


def _gpus_per_node(env: Mapping[str, str], nodes: int) -> list[int]:
    """GPUs of each node, where the job was asked for them per node or per task; else nothing."""
    if (gpus := _gpus(env.get("SLURM_GPUS_PER_NODE"))) is not None:
        return [gpus] * nodes
    tasks = _per_node(env, "SLURM_TASKS_PER_NODE", nodes)
    if (gpus := _gpus(env.get("SLURM_GPUS_PER_TASK"))) is not None and tasks:
        return [gpus * count for count in tasks]
    return []


def _refuse_totals(env: Mapping[str, str], job: str, nodes: int) -> None:
    """--gpus is for all nodes together: no variable says what each of them got, and an srun on one of them needs it."""
    total = env.get("SLURM_GPUS")
    if total and nodes > 1 and not (env.get("SLURM_GPUS_PER_NODE") or env.get("SLURM_GPUS_PER_TASK")):
        raise UsageError(
            f"job {job} has --gpus={total} over {nodes} nodes, and SLURM does not say how many each has: ask with "
            "--gpus-per-node or --gres=gpu:N instead"
        )


def _per_node(env: Mapping[str, str], name: str, nodes: int) -> tuple[int, ...] | None:
    """The numbers of `2(x3),1`, one a node. Raises UsageError where they are not as many as nodes."""
    text = env.get(name)
    if not text:
        return None
    runs = [_RUN.fullmatch(item.strip()) for item in text.split(",")]
    counts = [int(run[1]) for run in runs if run for _ in range(int(run[2] or 1))]
    if None in runs or len(counts) != nodes:
        raise UsageError(f"{name} is {text!r}, which is not a count for each of {nodes} nodes; {REMEDY}")
    return tuple(counts)


def _gpus(text: str | None) -> int | None:
    """`4`, `a100:4` or `gpu:a100:4`; of several kinds (`a:1,b:2`) all."""
    found = [_GPUS.fullmatch(item.strip()) for item in (text or "").split(",")]
    return sum(int(match[1]) for match in found if match) if all(found) else None


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isdigit() else None


SCRUBBED = ("SLURM_", "SRUN_", "SBATCH_", "SALLOC_", "PMI_", "PMIX_", "SSH_CONNECTION", "SSH_CLIENT")
KEPT = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT", "SLURM_CLUSTERS")


def scrubbed(env: Mapping[str, str]) -> dict[str, str]:
    """`env` for an srun of ours: what shaped the job or an outer step must not shape our step (srun reads it all as
    options), and what SSH told about another machine must not be taken for the node's own.
    """
    return {name: value for name, value in env.items() if name in KEPT or not name.startswith(SCRUBBED)}


def srun(job: Allocation, node: str, options: Sequence[str] = ()) -> list[str]:
    """The command that starts one task on one node of the job, with all of its CPUs and GPUs, beside other steps.

    options: more of srun's, as for a container.
    Without --unbuffered, SLURM keeps back output that holds no end of line, and an agent's frames need none.
    """
    return [
        "srun", f"--jobid={job.job}", "--nodes=1", "--ntasks=1", f"--nodelist={node}", "--overlap", "--cpu-bind=none",
        "--mem=0", "--unbuffered", "--kill-on-bad-exit=0", "--mpi=none", "--quiet", "--job-name=distperf",
        *([f"--gpus={job.gpus[node]}"] if node in job.gpus else []), *options,
    ]  # fmt: skip
