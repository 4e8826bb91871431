"""SLURM's variables, as batch scripts, salloc and srun set them, and as they come broken."""

import pytest

from launcher.errors import HostfileError, UsageError
from launcher.hostfile import parse_hostfile
from launcher.slurm.allocation import allocation, fewer_cpus, scrubbed, srun


def job(**variables):
    return {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2]", **variables}


def shape(env, nproc=None):
    return {
        host.name: None if host.slots is None else len(host.slots) for host in allocation(env, nproc).hosts
    }


def test_outside_of_a_job():
    """No job id or no nodelist: this machine."""
    assert allocation({}) is None
    assert allocation({"SLURM_CONF": "/etc/slurm/slurm.conf", "SLURM_JOB_ID": "7"}) is None


@pytest.mark.parametrize(
    ("nodelist", "names"),
    [
        ("cn[1,2]", "cn1 cn2"),  # D01
        ("tr-16-cn-[001-002,004],tr-17-cn-[001-003]",
         "tr-16-cn-001 tr-16-cn-002 tr-16-cn-004 tr-17-cn-001 tr-17-cn-002 tr-17-cn-003"),  # D04
        ("node[8-10]", "node8 node9 node10"),
        ("node[08-10]", "node08 node09 node10"),
        ("a", "a"),
    ],
)  # fmt: skip
def test_nodelists_d01_d04(nodelist, names):
    """Commas inside brackets, several groups, padding; the first node is the first."""
    assert list(shape(job(SLURM_JOB_NODELIST=nodelist))) == names.split()


@pytest.mark.parametrize("nodelist", ["node[1", "node[3-1]", "node[]", "node[1,,3]"])
def test_malformed_nodelists_d06(nodelist):
    """Refused with the place in the text, by our own parser: scontrol is never asked."""
    with pytest.raises(HostfileError, match=r"job 7: .*character [0-9]+"):
        allocation(job(SLURM_JOB_NODELIST=nodelist))


@pytest.mark.parametrize(
    ("variables", "slots"),
    [
        ({}, {"n1": 1, "n2": 1}),
        ({"SLURM_TASKS_PER_NODE": "4(x2)"}, {"n1": 1, "n2": 1}),  # nobody has asked for tasks
        ({"SLURM_TASKS_PER_NODE": "4(x2)", "SLURM_NTASKS": "8"}, {"n1": 4, "n2": 4}),
        ({"SLURM_TASKS_PER_NODE": "4,3", "SLURM_NTASKS": "7"}, {"n1": 4, "n2": 3}),
        ({"SLURM_GPUS_PER_NODE": "8", "SLURM_TASKS_PER_NODE": "1(x2)", "SLURM_NTASKS": "2"}, {"n1": 8, "n2": 8}),
        ({"SLURM_GPUS_PER_NODE": "a100:4"}, {"n1": 4, "n2": 4}),
        ({"SLURM_GPUS_PER_NODE": "a100:2,v100:1"}, {"n1": 3, "n2": 3}),
        ({"SLURM_GPUS_PER_TASK": "1", "SLURM_TASKS_PER_NODE": "2,1"}, {"n1": 2, "n2": 1}),
        ({"SLURM_GPUS_PER_TASK": "2", "SLURM_TASKS_PER_NODE": "2(x2)"}, {"n1": 4, "n2": 4}),
        ({"SLURM_GPUS_ON_NODE": "2", "SLURM_JOB_GPUS": "1,3"}, {"n1": None, "n2": None}),  # --gres: each is asked
    ],
)  # fmt: skip
def test_slots(variables, slots):
    """GPUs before tasks, tasks where they were asked for, and unequal nodes as they are."""
    assert shape(job(**variables)) == slots


def test_nproc_wins():
    """What the recipe or the user says about ranks stands above all that SLURM says."""
    assert shape(job(SLURM_GPUS_PER_NODE="8"), nproc=3) == {"n1": 3, "n2": 3}


@pytest.mark.parametrize("tasks", ["2(x3)", "2", "2(x", "", "two,one"])
def test_counts_that_are_none(tasks):
    """A count for each node, or an error that holds the text; an empty one says nothing."""
    env = job(SLURM_TASKS_PER_NODE=tasks, SLURM_NTASKS="4")
    if not tasks:
        assert shape(env) == {"n1": 1, "n2": 1}
        return
    with pytest.raises(UsageError, match="SLURM_TASKS_PER_NODE"):
        allocation(env)


def test_gpus_in_all_are_refused():
    """--gpus=6 over two nodes says nothing about either; on one node it does."""
    with pytest.raises(UsageError, match="--gpus-per-node"):
        allocation(job(SLURM_GPUS="6"))
    assert shape(job(SLURM_GPUS="6", SLURM_JOB_NODELIST="n1")) == {"n1": None}


def test_heterogeneous_jobs_are_refused_d19():
    """Both groups are named; training on the first alone would be a lie."""
    env = job(
        SLURM_HET_SIZE="2", SLURM_JOB_NODELIST="c1", SLURM_JOB_NODELIST_HET_GROUP_0="c1",
        SLURM_JOB_NODELIST_HET_GROUP_1="g[1-2]",
    )  # fmt: skip
    with pytest.raises(UsageError, match=r"group 0: c1; group 1: g\[1-2\]"):
        allocation(env)
    assert allocation({**env, "SLURM_HET_SIZE": "1"}) is not None


def test_which_job_and_which_task():
    """An element of an array is known by its own name; a task of a step by its number (D16)."""
    found = allocation(job(SLURM_ARRAY_JOB_ID="5", SLURM_ARRAY_TASK_ID="3", SLURM_RESTART_COUNT="2"))
    assert (found.job, found.key, found.restarts, found.task) == ("7", "5_3", 2, 0)
    found = allocation(job(SLURM_PROCID="3", SLURM_STEP_NUM_TASKS="4"))
    assert (found.key, found.task, found.tasks) == ("7", 3, 4)


def test_the_hostfile_in_the_run_folder():
    """What was taken from SLURM can be read back as a hostfile."""
    found = allocation(job(SLURM_TASKS_PER_NODE="2,1", SLURM_NTASKS="3"))
    assert [(host.name, host.slots) for host in parse_hostfile(found.hostfile, "it").hosts] == [
        (host.name, host.slots) for host in found.hosts
    ]


def test_an_srun_of_ours_d07_d09():
    """It has all CPUs and the job's GPUs on the node, whatever options the job and outer steps were given: none of
    their variables reaches it.
    """
    env = job(
        SLURM_CPUS_PER_TASK="2", SLURM_NTASKS="8", SLURM_GPUS_PER_TASK="1", SLURM_TASKS_PER_NODE="2,1", SRUN_DEBUG="3",
        SLURM_EXPORT_ENV="NONE", SLURM_CONF="/x", PMIX_RANK="1", SSH_CONNECTION="a b c d", PATH="/bin",
        CUDA_VISIBLE_DEVICES="3",
    )  # fmt: skip
    assert scrubbed(env) == {"SLURM_CONF": "/x", "PATH": "/bin", "CUDA_VISIBLE_DEVICES": "3"}
    command = srun(allocation(env), "n1")
    assert {"--jobid=7", "--nodelist=n1", "--overlap", "--cpu-bind=none", "--gpus=2", "--unbuffered"} <= set(
        command
    )
    assert "--gpus=1" in srun(allocation(env), "n2")
    assert not any(word.startswith("--gpus") for word in srun(allocation(job()), "n1"))


def test_fewer_cpus_than_the_job_has_d09():
    """A node whose agent may use fewer is told once, folded; more are none of our business."""
    found = allocation(job(SLURM_JOB_CPUS_PER_NODE="8(x2)"))
    assert fewer_cpus(found, {"n1": 8, "n2": 9}) == []
    (warning,) = fewer_cpus(found, {"n1": 1, "n2": 1})
    assert "n[1-2]" in warning
    assert "1 of 8" in warning
    assert fewer_cpus(None, {"n1": 1}) == []
