"""Run `distperf` as a user does, and look at what it did."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DISTPERF = str(Path(sys.executable).with_name("distperf"))

# Small enough that importing torch is most of a run; every parameter shape is there, and 3 ranks divide nothing evenly.
RECIPE = """
name: small
model: {family: llama, layers: 2, hidden: 32, heads: 4, kv_heads: 2, ffn: 64}
data: {synthetic: true, seq_len: 16}
train: {steps: 20, global_batch: 12}
optimizer: {lr: 3e-3, schedule: {warmup_steps: 2}}
precision: fp32
parallel: {zero: 2}
checkpoint: {every_steps: 5, dir: checkpoints}
launch: {grace_s: 3}
"""


@dataclass
class Launch:
    """A `distperf launch` in a folder: started, and later waited for."""

    folder: Path
    process: subprocess.Popen[str]

    @property
    def run(self) -> Path:
        """The run's folder."""
        return (self.folder / "runs" / "latest").resolve()

    def status(self) -> dict[str, Any]:
        """`distperf status --once --json`; {} before there is a run."""
        done = distperf(self.folder, "status", "--once", "--json")
        return json.loads(done.stdout) if done.returncode == 0 else {}

    def until(self, holds: Callable[[dict[str, Any]], bool], within_s: float = 60) -> dict[str, Any]:
        """Poll the status until it is as wanted."""
        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline:
            status = self.status()
            if status and holds(status):
                return status
            if self.process.poll() is not None:
                break
        out, err = self.end()
        raise AssertionError(f"never came; exit code {self.process.returncode}\n{out}\n{err}")

    def end(self, within_s: float = 90) -> tuple[str, str]:
        """Wait for the end; what it printed on stdout and stderr."""
        try:
            return self.process.communicate(timeout=within_s)
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGINT)
            self.process.send_signal(signal.SIGINT)
            out, err = self.process.communicate(timeout=30)
            raise AssertionError(f"did not end within {within_s} s\n{out}\n{err}") from None

    def losses(self) -> dict[int, float]:
        """Step -> loss. Each step must stand there once."""
        lines = metrics(self.run)
        assert [line["step"] for line in lines] == list(range(1, len(lines) + 1))
        return {line["step"]: line["loss"] for line in lines}

    def token(self) -> str:
        """What every process of the run carries in its environment."""
        return self.run.name


def metrics(run: Path, name: str = "metrics.jsonl") -> list[dict[str, Any]]:
    """Lines of metrics.jsonl."""
    path = run / name
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def start(folder: Path, *args: str, env: dict[str, str] | None = None) -> Launch:
    """Start `distperf launch ARGS` in a folder."""
    process = subprocess.Popen(
        [DISTPERF, "launch", *args], cwd=folder, env={**os.environ, **(env or {})}, text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    return Launch(folder, process)


def distperf(
    folder: Path, *args: str, env: dict[str, str] | None = None, limit_s: float = 120
) -> subprocess.CompletedProcess[str]:
    """Run a `distperf` command to its end."""
    return subprocess.run(
        [DISTPERF, *args], cwd=folder, env={**os.environ, **(env or {})}, text=True, stdin=subprocess.DEVNULL,
        capture_output=True, timeout=limit_s, check=False,
    )  # fmt: skip


def processes_of(run_id: str) -> list[int]:
    """Pids of every process of a run, on this machine and in all of its namespaces (pid namespaces nest)."""
    return [pid for pid, environ in _environs() if f"DISTPERF_JOB_TOKEN={run_id}-".encode() in environ]


def gone(run_id: str, within_s: float) -> bool:
    """True when no process of the run is left within the time."""
    deadline = time.monotonic() + within_s
    while processes_of(run_id):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def _environs() -> Iterator[tuple[int, bytes]]:
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                yield int(name), Path("/proc", name, "environ").read_bytes()
            except OSError:  # ended meanwhile
                continue
