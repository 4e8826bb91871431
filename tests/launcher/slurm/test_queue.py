"""SLURM's commands, by programs of their names that answer from a file; and which run a job has."""

import pytest

from launcher import events, view
from launcher.errors import LauncherError, UsageError
from launcher.journal import Journal
from launcher.rundir import RunDir, find_run
from launcher.slurm import queue
from launcher.slurm.allocation import allocation
from launcher.stop import stop_run


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    """cluster(squeue="PENDING|Resources") makes a command that prints that; what it was called with is in NAME.args."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")

    def make(**commands):
        for name, says in commands.items():
            path = folder / name
            path.write_text(f"#!/bin/sh\necho \"$@\" >>'{path}.args'\n{says}\n")
            path.chmod(0o755)
        return folder

    return make


def run_in(folder, name="big-20260101-000000-abcd"):
    run = RunDir(folder / name)
    run.create()
    return run


def job(**variables):
    return allocation({"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n1", **variables})


def test_a_run_that_waits(cluster, tmp_path):
    """`status` tells its job's state and reason; `stop` takes it out of the queue."""
    bin_ = cluster(squeue="echo 'PENDING|Resources'", scancel="true")
    run = run_in(tmp_path / "runs")
    queue.mark(run, "7")
    assert find_run("slurm-7", tmp_path / "runs").path == run.path
    seen = view.look(run)
    assert (seen["state"], seen["notes"]) == ("queued", ["job 7 of SLURM's is pending: Resources"])
    assert "job 7" in stop_run(run, now=False)
    assert (bin_ / "scancel.args").read_text() == "7\n"


@pytest.mark.parametrize(
    ("code", "waits", "cancelled"), [(75, True, True), (75, False, False), (0, True, False)]
)
def test_a_run_whose_job_waits_again(cluster, tmp_path, code, waits, cancelled):
    """A requeued job is taken out of the queue; a run that is done needs none of SLURM's commands to say so."""
    bin_ = cluster(squeue=f"echo '{'PENDING|BeginTime' if waits else ''}'", scancel="true")
    run = run_in(tmp_path / "runs")
    queue.mark(run, "7", restarts=0)
    journal = Journal(run.events)
    policy = {"max_restarts": 1, "heartbeat_timeout_s": 1, "lease_s": 1, "grace_s": 1, "script": True}
    journal.write(events.RunCreated(0.0, run.run_id, "big", None, [], policy, {"host": "c", "pid": 1}, "0"))
    journal.write(events.Ended(1.0, "stopped" if code else "finished", code))
    journal.close()
    said = stop_run(run, now=False)
    assert ("is cancelled" in said) == cancelled
    assert (bin_ / "scancel.args").exists() == cancelled
    assert (bin_ / "squeue.args").exists() == (code != 0)


@pytest.mark.parametrize(
    ("says", "state"), [("RUNNING|None", "starting"), ("CANCELLED|None", "lost"), ("", "lost")]
)
def test_a_run_that_does_not_wait(cluster, tmp_path, says, state):
    """Its job has begun and it has not; or the job is gone, and it never will."""
    cluster(squeue=f"echo '{says}'")
    run = run_in(tmp_path / "runs")
    queue.mark(run, "7")
    assert view.look(run)["state"] == state


def test_what_fails_is_told(cluster):
    """By what a command says, not by its exit status alone."""
    cluster(
        squeue="echo 'socket timed out' >&2; exit 1",
        scontrol="echo 'access denied' >&2; exit 0",
        sbatch="exit 0",
    )
    with pytest.raises(LauncherError, match="socket timed out"):
        queue.look("7")
    assert queue.requeue("7") == "access denied"
    with pytest.raises(UsageError, match="did not take the job"):
        queue.submit("", ".")


def test_without_slurm(tmp_path, monkeypatch):
    """Where there are no commands this is told, and a job that cannot be queued again as well (D11)."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match="no squeue on PATH"):
        queue.look("7")
    assert "container" in queue.requeue("7")


def test_which_run_a_job_has(tmp_path):
    """The one that it was submitted for, or had when it was requeued; not another's, nor one of this very start."""
    runs = tmp_path / "runs"
    run = run_in(runs)
    assert queue.run_of(job(), "big", runs) is None
    queue.mark(run, "7")
    assert queue.run_of(job(), "big", runs) == run
    queue.mark(run, "7", restarts=0)
    assert queue.run_of(job(), "big", runs) is None  # the script launches the recipe twice
    assert queue.run_of(job(SLURM_RESTART_COUNT="1"), "big", runs) == run
    assert queue.run_of(job(SLURM_RESTART_COUNT="1"), "bi", runs) is None
    assert queue.run_of(job(SLURM_RESTART_COUNT="1", SLURM_JOB_ID="8"), "big", runs) is None


def test_what_follows_waits_for_the_beginning(cluster, tmp_path):
    """`logs -f` says what the job waits for, once, until the run begins; `logs` does not wait, and nobody for a job
    that is gone.
    """
    run = run_in(tmp_path / "runs")
    queue.until_begun(run, False, print)  # no job's
    queue.mark(run, "7")
    said = []
    begin = f"test $(wc -l <{tmp_path}/bin/squeue.args) -lt 3 || touch {run.events}"
    cluster(squeue=f"echo 'PENDING|Priority'; {begin}")
    with pytest.raises(UsageError, match="has not begun: job 7 of SLURM's is pending: Priority"):
        queue.until_begun(run, False, said.append)
    queue.until_begun(run, True, said.append, every_s=0.0)
    assert said == ["job 7 of SLURM's is pending: Priority"]
    run.events.unlink()
    cluster(squeue="echo 'CANCELLED|None'")
    with pytest.raises(UsageError, match="cancelled"):
        queue.until_begun(run, True, said.append)
