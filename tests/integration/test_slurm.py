"""Runs inside a real SLURM: hosts from the job, agents by srun, signals, requeue, arrays, preemption."""

from __future__ import annotations

import json
import re
import shutil
import sys
import time

import pytest
from integration.slurm import slurm

__all__ = ["slurm"]

pytestmark = [pytest.mark.lab, pytest.mark.slow, pytest.mark.timeout(600)]
LAB_HOSTS = 3
DISTPERF = f"{sys.executable} -m launcher"
COLD = "--set launch.warm_start=false"
LIMIT_S = 180.0  # SLURM looks at time limits twice a minute, on a machine that may be busy

HELLO = """
import os, subprocess
inner = subprocess.run(["srun", "--overlap", "-n1", "-N1", "hostname"], capture_output=True, text=True)
print("hello", os.environ["RANK"], os.uname().nodename, os.environ.get("CUDA_VISIBLE_DEVICES"),
      "SLURM_PROCID" in os.environ, inner.returncode)
"""
WHERE = """
import os, sys, torch_is_not_needed
print("inside", os.path.exists("/here"), os.path.exists("%s"), os.getcwd(), sys.executable)
open("made", "a").write(os.environ["RANK"])
"""
# Ends in order when it is told to, and only then; another attempt is done at once.
PATIENT = """
import os, signal, sys, time
if os.environ["DISTPERF_ATTEMPT"] != "1":
    sys.exit(print("again", os.environ["RANK"]))
signal.signal(signal.SIGTERM, lambda *_: sys.exit(print("saved", os.environ["RANK"], flush=True)))
print("up", os.environ["RANK"], flush=True)
time.sleep(120)
"""
RECIPE = """
name: patient
script: {path: patient.py}
launch: {warm_start: false}
slurm: {nodes: 2, time: "%s", signal_s: 59, extra: [%s]}
"""

TRAINING = """
name: train
model: {family: llama, layers: 2, hidden: 32, heads: 2, ffn: 64, vocab: 257}
data: {synthetic: true, seq_len: 32}
train: {steps: 100000, global_batch: 4}
precision: fp32
checkpoint: {every_steps: 0}
slurm: {nodes: 2, time: 10}
"""


@pytest.fixture(autouse=True)
def empty_queue(slurm):
    """Every test begins with a cluster of its own, in an empty folder for runs."""
    yield
    slurm.run("scancel -u trainer")
    until(lambda: not slurm.run("squeue -h"))
    slurm.run("rm -rf runs")  # not before: a run that is being cancelled still writes its checkpoint


def until(condition, limit_s=LIMIT_S):
    limit = time.monotonic() + limit_s
    while not (found := condition()):
        assert time.monotonic() < limit, "waited in vain"
        time.sleep(0.1)
    return found


def write(slurm, **files):
    for name, text in files.items():
        (slurm.folder / name.replace("_", ".")).write_text(text)


def status(slurm, run=""):
    return json.loads(slurm.run(f"{DISTPERF} status {run} --json"))


def submit(slurm, *sets):
    """Submit patient.yaml; the job's id."""
    flags = "".join(f" --set {text}" for text in sets)
    said = slurm.run(f"{DISTPERF} sbatch patient.yaml{flags} --submit 2>&1")
    return re.search(r"job (?:array )?([0-9]+) is submitted", said)[1]


def go_again(slurm, job):
    """SLURM lets a requeued job wait for two minutes; not here."""
    until(lambda: slurm.state(job) == "PENDING")
    slurm.lab.ssh(1, f"scontrol update JobId={job} StartTime=now", user="root")


def test_a_job_gives_hosts_slots_and_gpus(slurm):
    """Unequal nodes: two tasks with a GPU each on one, one on the other. Ranks can start steps of their own, and are
    not taken for SLURM's tasks.
    """
    write(slurm, hello_py=HELLO)
    said = slurm.job("-N2 -n3 --gpus-per-task=1", f"{DISTPERF} launch --script hello.py {COLD}")
    hello = sorted(line.split("| ")[1] for line in said.splitlines() if "| hello" in line)
    assert hello == [
        "hello 0 host2 0,1 False 0", "hello 1 host2 0,1 False 0", "hello 2 host3 0 False 0",
    ], said  # fmt: skip
    assert status(slurm)["exit_code"] == 0


def test_a_container_of_pyxis(slurm):
    """Agents and ranks run in the image, which holds neither distperf nor its Python; the folder of the launch is seen
    at its own path, what is mounted where it is told to, and the rest of the host is not there.
    """
    for host in (2, 3):
        slurm.lab.ssh(host, "mkdir /run/image; mkdir -m 1777 /run/image/tmp; touch /run/image/here", "root")
    (slurm.folder / "modules").mkdir()
    (slurm.folder / "modules" / "torch_is_not_needed.py").touch()
    write(slurm, where_py=WHERE % sys.prefix, where_yaml=f"""
script: {{path: where.py}}
launch: {{env: {{PYTHONPATH: /opt/modules}}}}
slurm:
  container: {{image: /run/image, mounts: ["{slurm.folder}/modules:/opt/modules"], options: [--container-writable]}}
""")  # fmt: skip
    said = slurm.job("-N2", f"{DISTPERF} launch where.yaml {COLD}")
    assert said.count(f"inside True False {slurm.folder} /usr/bin/python3") == 2, said
    assert sorted((slurm.folder / "made").read_text()) == ["0", "1"]


def test_one_task_leads_where_all_are_told_to_d16(slurm):
    """D16: started under srun on two nodes, one process leads the run, and the other says so and leaves."""
    write(slurm, hello_py=HELLO)
    said = slurm.job("-N2 -n2", f"srun {DISTPERF} launch --script hello.py {COLD}")
    assert "this is task 1 of 2" in said
    assert len(json.loads(slurm.run(f"{DISTPERF} ps --json"))["runs"]) == 1
    assert [rank["host"] for rank in status(slurm)["ranks"]] == ["host2", "host3"], said


def test_all_groups_of_a_heterogeneous_job_or_none_d19(slurm):
    """D19: both groups are named in the refusal, and nothing is started on the first."""
    write(slurm, hello_py=HELLO)
    launch = f"{DISTPERF} launch --script hello.py; echo code $? >>job.log"
    slurm.run(f"rm -f job.log; sbatch -o job.log -N1 -w host2 : -N1 -w host3 --wrap '{launch}'")
    said = until(lambda: "code" in (text := slurm.run("cat job.log 2>/dev/null || true")) and text)
    assert "is heterogeneous (group 0: host2; group 1: host3)" in said
    assert "code 2" in said
    assert not (slurm.folder / "runs").exists()


def test_from_the_login_node_and_over_ssh(slurm):
    """`salloc` leaves us where we are, and agents start on the job's nodes; by SSH, too, where the recipe says so."""
    write(slurm, hello_py=HELLO)
    launch = f"{DISTPERF} launch --script hello.py {COLD}"
    said = slurm.run(f"salloc -Q -N2 --gpus-per-node=2 {launch} 2>&1")
    assert "4 ranks on host2, host3" in said
    assert said.count("| hello") == 4, said
    write(
        slurm,
        hello_py=HELLO.partition("inner")[0] + 'print("hello", os.environ["RANK"], os.uname().nodename)',
    )
    config = slurm.folder / "ssh_config"  # of the user on the login node, in place of one at home
    config.write_text(
        (slurm.lab.dir / "ssh_config").read_text().replace(str(slurm.lab.dir), str(slurm.folder))
    )
    for name in ("key", "known_hosts"):
        shutil.chown(shutil.copy(slurm.lab.dir / name, slurm.folder), int(slurm.run("id -u")))
    ssh = f"env DISTPERF_SSH_CONFIG={config} {launch} --set slurm.agents=ssh"
    said = slurm.run(f"salloc -Q -N2 {ssh} 2>&1")
    hello = sorted(line.split("| ")[1] for line in said.splitlines() if "| hello" in line)
    assert hello == ["hello 0 host2", "hello 1 host3"], said


def test_a_queued_and_a_running_job_from_the_login_node(slurm):
    """`status` knows a job that waits and why, `stop` takes it out of the queue; of one that runs they show the ranks,
    and stop it in order.
    """
    write(slurm, patient_py=PATIENT, patient_yaml=RECIPE % ("10", ""))
    slurm.run("sbatch -N2 --exclusive --wrap 'sleep 60'")
    waiting = submit(slurm)
    until(lambda: "Resources" in "".join(status(slurm, f"slurm-{waiting}")["notes"]))
    assert status(slurm)["state"] == "queued"
    assert "is cancelled" in slurm.run(f"{DISTPERF} stop 2>&1")
    assert slurm.state(waiting) in ("", "CANCELLED")
    slurm.run("scancel -u trainer")
    running = submit(slurm)
    until(lambda: slurm.run(f"{DISTPERF} logs slurm-{running} 2>/dev/null || true").count("up") == 2)
    assert [rank["host"] for rank in status(slurm, f"slurm-{running}")["ranks"]] == ["host2", "host3"]
    assert "has ended (stopped)" in slurm.run(f"{DISTPERF} stop 2>&1")
    assert status(slurm)["exit_code"] == 130
    assert slurm.run(f"{DISTPERF} logs").count("saved") == 2


def test_a_time_limit_is_one_more_attempt_of_the_same_run(slurm):
    """SLURM's warning before the limit ends the run in order with code 75; the job is queued again, and goes on in the
    same folder as attempt 2, with the logs of the first kept.
    """
    write(slurm, patient_py=PATIENT, patient_yaml=RECIPE % ("1", ""))
    job = submit(slurm)
    until(lambda: slurm.state(job) == "RUNNING")
    go_again(slurm, job)
    assert status(slurm)["exit_code"] == 75
    assert slurm.run(f"{DISTPERF} logs --attempt 1").count("saved") == 2
    until(lambda: status(slurm)["exit_code"] == 0)
    assert (status(slurm)["attempt"], len(list((slurm.folder / "runs").glob("patient-*")))) == (2, 1)
    assert slurm.run(f"{DISTPERF} logs --attempt 1").count("saved") == 2
    assert slurm.run(f"{DISTPERF} logs").count("again") == 2


def test_one_element_of_an_array_is_queued_again_by_itself(slurm):
    """The warning to one element ends and requeues that one; the other goes on, until it is cancelled for good."""
    write(slurm, patient_py=PATIENT, patient_yaml=RECIPE % ("10", '"--array=0-1", "--ntasks-per-node=1"'))
    job = submit(slurm, "slurm.nodes=1")
    up = 'grep -l "^up" runs/patient-*/logs/attempt-1/*.log | wc -l'
    until(lambda: slurm.run(up) == "2")
    slurm.run(f"scancel -b -s USR1 {job}_1")
    go_again(slurm, f"{job}_1")
    until(lambda: slurm.state(f"{job}_1") in ("", "COMPLETED"))
    runs = {
        run["exit_code"]: run["attempt"] for run in json.loads(slurm.run(f"{DISTPERF} ps --json"))["runs"]
    }
    assert runs == {None: 1, 0: 2}
    slurm.run(f"scancel {job}_0")
    ps = f"{DISTPERF} ps --json"
    until(lambda: {run["exit_code"] for run in json.loads(slurm.run(ps))["runs"]} == {143, 0})
    assert slurm.state(f"{job}_0") != "PENDING"


def test_preemption_ends_a_run_in_order_and_goes_on_later(slurm):
    """A job of higher priority takes the nodes: SIGTERM to everything at once, all ranks save, and the job is queued
    again, which SLURM would not do for one that uses its grace time to end.
    """
    write(slurm, patient_py=PATIENT, patient_yaml=RECIPE % ("10", ""))
    job = submit(slurm)
    until(lambda: slurm.run(f"{DISTPERF} logs slurm-{job} 2>/dev/null || true").count("up") == 2)
    slurm.run("sbatch -p high -N2 --exclusive --wrap 'sleep 1'")
    until(lambda: slurm.state(job) == "PENDING")
    assert (status(slurm)["state"], status(slurm)["exit_code"]) == ("stopped", 75)
    assert slurm.run(f"{DISTPERF} logs --attempt 1").count("saved") == 2
    go_again(slurm, job)
    until(lambda: status(slurm)["exit_code"] == 0)
    assert status(slurm)["attempt"] == 2


def test_a_lost_node_costs_no_more_than_a_restart(slurm):
    """SLURM itself queues a job again whose node it has lost: the run goes on in it."""
    write(slurm, patient_py=PATIENT, patient_yaml=RECIPE % ("10", ""))
    job = submit(slurm)
    until(lambda: slurm.run(f"{DISTPERF} logs slurm-{job} 2>/dev/null || true").count("up") == 2)
    slurm.lab.ssh(1, "scontrol update NodeName=host3 State=DOWN Reason=test", "root")
    until(lambda: slurm.state(job) == "PENDING")
    slurm.lab.ssh(
        1, "scontrol update NodeName=host3 State=RESUME || true", "root"
    )  # it may be back by itself
    go_again(slurm, job)
    until(lambda: status(slurm)["exit_code"] == 0)
    assert status(slurm)["attempt"] == 2


@pytest.mark.parametrize("signal", ["--batch --signal=USR1", "--signal=USR2"])
def test_training_goes_on_from_the_very_step_of_the_warning(slurm, signal):
    """Only the batch shell is told, or only the steps: both ranks end after the same step with its checkpoint, from
    which the requeued job trains on; metrics are those of one run.
    """
    write(slurm, train_yaml=TRAINING)
    slurm.run(f"{DISTPERF} sbatch train.yaml --submit 2>/dev/null")
    metrics = slurm.folder / "runs" / "latest" / "metrics.jsonl"
    until(lambda: metrics.exists() and len(metrics.read_text().splitlines()) > 4)
    job = slurm.run("squeue -h -o %i")
    slurm.run(f"scancel {signal} {job}")
    go_again(slurm, job)
    first = status(slurm)
    assert (first["exit_code"], first["checkpoint"].rpartition("-")[2]) == (75, f"{first['step']:08d}")
    until(lambda: len(metrics.read_text().splitlines()) > first["step"] + 1)
    steps = [json.loads(line)["step"] for line in metrics.read_text().splitlines()]
    assert steps == list(range(1, len(steps) + 1))
    assert f"resumed after step {first['step']} " in slurm.run(f"{DISTPERF} logs --rank 0")
