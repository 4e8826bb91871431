"""SLURM's own commands, as far as a run needs them: submit, look, signal, requeue.

Success is never judged by an exit status alone: what is printed is read. A job's mark in its run folder (slurm.json)
says that the folder is a job's, which may still be waiting.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from launcher.errors import LauncherError, UsageError
from launcher.rundir import RunDir, all_runs
from launcher.slurm.allocation import Allocation

LIMIT_S = 30.0
LOOK_S = 2.0
WAITING = {"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT"}
_SUBMITTED = re.compile(r"([0-9]+)(;\S*)?")


@dataclass(frozen=True)
class Job:
    """A job in the queue. key: its id, or ARRAY_TASK. state: squeue's word, "" when it is not there any more."""

    key: str
    state: str
    reason: str = ""

    @property
    def sentence(self) -> str:
        """What there is to say of it."""
        state = f"job {self.key} of SLURM's is {self.state.lower() or 'not in the queue'}"
        return f"{state}: {self.reason}" if self.reason else state

    @property
    def gone(self) -> bool:
        """It does not wait, and has no nodes."""
        return not self.waits and self.state not in ("RUNNING", "COMPLETING")

    @property
    def waits(self) -> bool:
        """It has no nodes now, and will have some."""
        return self.state in WAITING


def until_begun(run: RunDir, follow: bool, say: Callable[[str], None], every_s: float = LOOK_S) -> None:
    """Return once the run has begun; at once where it is no job's.

    Raises UsageError with its job's state where that is to be waited for and may not be (`follow`), or will never be.
    """
    told = ""
    while (found := job_of(run)) is not None and not run.events.exists():
        job = look(found[0])
        if not follow or job.gone:
            raise UsageError(f"run {run.run_id} has not begun: {job.sentence}")
        if job.sentence != told:
            told = job.sentence
            say(told)
        time.sleep(every_s)


def submit(script: str, folder: Path) -> str:
    """Submit a batch script, held back for now; the job's id. Raises UsageError with what sbatch said."""
    done = _call(["sbatch", "--parsable", "--hold", f"--chdir={folder}"], script)
    found = _SUBMITTED.fullmatch(done.stdout.strip())
    if found is None:
        raise UsageError(
            f"sbatch did not take the job: {done.stderr.strip() or done.stdout.strip() or 'it says nothing'}"
        )
    return found[1]


def release(key: str) -> None:
    """Let a job that was held back start. Raises LauncherError."""
    done = _call(["scontrol", "release", key])
    if done.returncode or done.stderr.strip():
        raise LauncherError(f"job {key} is held back, and scontrol cannot release it: {done.stderr.strip()}")


def look(key: str, limit_s: float = LIMIT_S) -> Job:
    """The job as squeue shows it. Raises LauncherError where squeue itself fails."""
    done = _call(["squeue", "--noheader", f"--jobs={key}", "--states=all", "--format=%T|%r"], limit_s=limit_s)
    if done.returncode and "Invalid job id" not in done.stderr:
        raise LauncherError(f"squeue cannot tell of job {key}: {done.stderr.strip()}")
    state, _, reason = done.stdout.strip().partition("\n")[0].partition("|")
    return Job(key, state, "" if reason == "None" else reason)


def cancel(key: str) -> None:
    """Take a job out of the queue. Raises LauncherError."""
    done = _call(["scancel", key])
    if done.returncode or done.stderr.strip():
        raise LauncherError(f"scancel {key}: {done.stderr.strip()}")


def interrupt(key: str) -> None:
    """SIGINT to the batch shell, which is distperf: as Ctrl-C in its terminal. Raises LauncherError."""
    done = _call(["scancel", "--batch", "--signal=INT", key])
    if done.returncode or done.stderr.strip():
        raise LauncherError(f"scancel --batch --signal=INT {key}: {done.stderr.strip()}")


def requeue(key: str) -> str | None:
    """Queue this job again; why not, where that fails. The job's processes are ended by it."""
    if shutil.which("scontrol") is None:
        return "there is no scontrol here (a container?)"
    done = _call(["scontrol", "requeue", key])
    return (done.stderr or done.stdout).strip() or None


def _call(command: list[str], text: str = "", limit_s: float = LIMIT_S) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command, input=text, capture_output=True, text=True, timeout=limit_s, check=False
        )
    except FileNotFoundError:
        raise UsageError(
            f"there is no {command[0]} on PATH: this is not a machine of a SLURM cluster"
        ) from None
    except subprocess.TimeoutExpired:
        raise LauncherError(f"{command[0]} does not answer within {limit_s:g} s") from None


# Which job a run is, and which run a job has.


def mark(run: RunDir, key: str, restarts: int = -1) -> None:
    """Say that the run is this job's, in its folder and by a link beside it: `distperf status slurm-KEY` finds it.

    restarts: how often the job had been requeued when it led the run; -1: it has not begun yet.
    """
    run.write_json(run.slurm, {"job": key, "restarts": restarts})
    link = run.path.parent / link_name(key)
    temporary = link.with_name(f".{link.name}")
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(run.run_id)
    temporary.replace(link)


def link_name(key: str) -> str:
    """What the link beside the runs is called."""
    return f"slurm-{key}"


def run_of(job: Allocation, name: str, runs: Path) -> RunDir | None:
    """The run that this job was submitted for, or has begun before it was requeued. name: of its recipe."""
    for run in reversed(list(all_runs(runs))):
        key, restarts = job_of(run) or ("", 0)
        if key == job.key and restarts < job.restarts and run.run_id.startswith(f"{name}-"):
            return run
    return None


def job_of(run: RunDir) -> tuple[str, int] | None:
    """The job that a run is, and how often it had been requeued then; None where it is none."""
    try:
        said = json.loads(run.slurm.read_text())
        return str(said["job"]), int(said["restarts"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
