"""What a rank is promised and what it owes. Standard library only; shared by launcher, runtime and user scripts.

Promised (environment): torchrun's variables in full, and the names below. Owed: an exit code, and, for a run whose
progress shall be watched, records on the report pipe: one JSON object a line, written whole. A record has a `kind`:

    progress    {step, parts: {forward: 0.2, ...}}   a step was finished (each rank); seconds of its parts, if known
    metrics     {step, loss, lr, grad_norm, ...}     one line of metrics.jsonl (rank 0)
    memory      {parameters_bytes, gradients_bytes, optimizer_bytes, ...}
    phase       {phase: "build"|"data"|"train"|"checkpoint"|"eval"}
    event       {event: "checkpoint"|"resume"|..., ...}   something for the journal
    trace       {id, path}                           a profiler's trace lies there, for the agent to hand on
    error       {type, message, traceback, frame}    the exception that ends this rank
    done        {}                                   all steps are done; an exit with code 0 is meant
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
from collections import deque
from typing import Any

RUNSPEC_ENV = "DISTPERF_RUNSPEC"  # the resolved run as JSON; the bundled runtime reads nothing else
RUN_ID_ENV = "DISTPERF_RUN_ID"
TOKEN_ENV = "DISTPERF_JOB_TOKEN"  # in every process of a run, so that none can be missed when it ends
ATTEMPT_ENV = "DISTPERF_ATTEMPT"  # 1, 2, ...
REPORT_FD_ENV = "DISTPERF_REPORT_FD"  # write end of a pipe to this node's agent
STACK_FILE_ENV = "DISTPERF_STACK_FILE"  # where SIGUSR2 writes stacks, for a report of a stall
ADDRESS_ENV = "DISTPERF_ADDRESS"  # the address of this node that the other nodes use
MEMORY_ENV = "DISTPERF_MEMORY"  # this node's folder for checkpoints in memory, where the run has some
RESUME_ENV = "DISTPERF_RESUME"  # a checkpoint folder to start from; empty: from the run's own newest, if any

BENCH_ENV = "DISTPERF_BENCH"  # what `distperf bench` has its ranks measure, as JSON: {"parts": [...], "drives": [...]}

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_UNREACHABLE = 3
EXIT_PREFLIGHT = 4
EXIT_PREEMPTED = 75
EXIT_INTERRUPTED = 130
EXIT_TERMINATED = 143

# A rank never waits for its agent: what the pipe cannot take is kept here, and the oldest records are let go past
# this many (a pipe holds 64 KiB, an agent reads it every few milliseconds; this is hours of a stopped agent).
MAX_WAITING_RECORDS = 65536


# What training writes into a line of metrics.jsonl; a script of a user's own writes what it likes, and its step.
METRICS = {
    "step": "Number of the step, from 1.",
    "attempt": "Attempt of the run that made it.",
    "loss": "Mean over the targets of the global batch; null where it is not finite.",
    "grad_norm": "Norm of all gradients, before clipping; null where it is not finite.",
    "lr": "Learning rate.",
    "tokens": "Targets that counted in the step, over all ranks.",
    "tokens_seen": "The same, since the run's first step.",
    "tokens_per_s": "The same, a second.",
    "step_s": "Seconds that the step took.",
    "mfu": "Share of the devices' peak arithmetic that the model's own took; null where one of them is not known.",
    "peak_bytes": "Most memory that rank 0 held: of its device, else of its process.",
    "loss_scale": "Loss scale in fp16; null without one.",
    "skipped_steps": "Steps of this attempt whose gradients overflowed in fp16, so that no weight changed.",
    "eval_loss": "Of the evaluation after the step, where there was one.",
    "eval_tokens": "Targets that the evaluation counted.",
    "eval_s": "Seconds that it took.",
}
# Seconds of a step by part, as each rank measures them; rank 0's are in metrics.jsonl too, with _s after the name.
PARTS = {
    "data": "Waiting for the batch.",
    "forward": "Forward passes.",
    "backward": "Backward passes.",
    "communication": "Waiting for other ranks, and, in a pipeline, its bubble.",
    "optimizer": "The update.",
    "checkpoint": "What a save keeps training waiting.",
    "evaluation": "Evaluations.",
    "other": "What lies in no other part.",
}


class Reporter:
    """Sends records to the agent without ever blocking the rank. Does nothing when there is no agent."""

    def __init__(self, fd: int | None) -> None:
        self._fd = fd
        self._waiting: deque[bytes] = deque(maxlen=MAX_WAITING_RECORDS)
        if fd is not None:
            os.set_inheritable(fd, False)
            os.set_blocking(fd, False)

    @classmethod
    def from_env(cls, environ: dict[str, str] | None = None) -> Reporter:
        """Reporter on the pipe named in the environment, or a silent one."""
        text = (os.environ if environ is None else environ).get(REPORT_FD_ENV, "")
        try:
            fd = int(text)
            os.fstat(fd)
        except (ValueError, OSError):
            return cls(None)
        return cls(fd)

    def send(self, kind: str, **fields: Any) -> None:
        """Queue one record and hand the pipe as much as it takes."""
        if self._fd is None:
            return
        self._waiting.append(json.dumps({"kind": kind, **fields}).encode() + b"\n")
        self.flush()

    def flush(self) -> None:
        """Write what the pipe takes now. Never blocks and never raises: a rank outlives its agent's pipe."""
        while self._waiting and self._fd is not None:
            line = self._waiting[0]
            try:
                written = os.write(self._fd, line)
            except BlockingIOError:
                return
            except OSError:
                self._fd = None
                return
            if written < len(line):
                self._waiting[0] = line[written:]
            else:
                self._waiting.popleft()


_reporter: Reporter | None = None


def reporter() -> Reporter:
    """The process-wide reporter (one pipe, one writer)."""
    global _reporter
    if _reporter is None:
        _reporter = Reporter.from_env()
        answer_with_stacks(os.environ.get(STACK_FILE_ENV, ""))
    return _reporter


def answer_with_stacks(path: str) -> None:
    """Have SIGUSR2 write the main thread's stack to `path`, for the agent; a handler of the program's own stays.

    Of the main thread alone, which is the one that the kernel gives the signal to: faulthandler walks another thread's
    frames while that one runs on and frees them; with a busy side thread one look in ten ended the process by SIGSEGV.
    """
    if path and signal.getsignal(signal.SIGUSR2) == signal.SIG_DFL:
        try:
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        except OSError:  # the agent's folder is gone, and so is who would ask
            return
        faulthandler.register(signal.SIGUSR2, file=fd, all_threads=False)


def report(step: int, **metrics: float) -> None:
    """Tell distperf that `step` is finished, from any training script; harmless outside distperf.

    With metrics (say `loss=`), the line also goes to the run's metrics.jsonl and to the progress display; call it
    so on one rank only.
    """
    reporter().send("progress", step=step)
    if metrics:
        reporter().send("metrics", step=step, **metrics)
