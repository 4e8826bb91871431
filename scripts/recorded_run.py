"""Makes the folder of a run that never was: the journal, metrics and logs that a controller would have written.

    python scripts/recorded_run.py FOLDER [--nodes 128] [--slots 8] [--steps 2000] [--journal-mb 0] [--live SECONDS]

For the dashboard's tests, its benchmark and pictures of it: 1,024 ranks, one failure with a restart, two stragglers.
--live goes on writing at one step a second, as this process's run, so that it is shown as running.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from launcher import bookmark, events, protocol
from launcher.figurefiles import FigureFiles
from launcher.journal import Story
from launcher.lifetime import started_at
from launcher.rundir import RunDir
from launcher.steps import fold_steps

STEP_S = 1.0
KEPT_S = 5.0  # how often a controller writes steps down
SLOW, BEHIND = (
    517,
    803,
)  # ranks that stand out: the one takes longer for a step, the other stopped reporting for a while
GIB = 1 << 30
TAIL = """Traceback (most recent call last):
  File "train.py", line 88, in <module>
    loss.backward()
RuntimeError: CUDA error: an illegal memory access was encountered [/bold] \x1b[31mred\x1b[0m
"""


class Recorder:
    """Writes events and metrics with times that follow from steps."""

    def __init__(self, run: RunDir, nodes: int, slots: int, steps: int, began: float) -> None:
        self.run, self.nodes, self.slots, self.steps, self.began = run, nodes, slots, steps, began
        self.t = 0.0
        self.journal_bytes = 0
        self._waiting: dict[Path, list[bytes]] = {run.events: [], run.metrics: []}

    @property
    def ranks(self) -> int:
        return self.nodes * self.slots

    def host(self, rank: int) -> str:
        return f"node{rank // self.slots + 1:03d}"

    def happened(self, event: events.Event) -> None:
        line = {"time": round(self.began + event.t, 3), **events.to_line(event)}
        text = json.dumps(line).encode() + b"\n"
        self._waiting[self.run.events].append(text)
        self.journal_bytes += len(text)

    def create(self, controller: dict[str, Any]) -> None:
        ranks = [
            {"rank": r, "local_rank": r % self.slots, "host": self.host(r), "node_rank": r // self.slots,
             "coordinates": {"pp": 0, "dp_replicate": r // 64, "dp_shard": r % 64, "cp": 0, "tp": 0}}
            for r in range(self.ranks)
        ]  # fmt: skip
        policy = {"max_restarts": 5, "heartbeat_timeout_s": 10.0, "lease_s": 25.0, "grace_s": 30.0, "script": False,
                  "min_nodes": None, "stall_timeout_s": None}  # fmt: skip
        self.happened(
            events.RunCreated(
                0.0, self.run.path.name, "recorded", self.steps, ranks, policy, controller, "0.1.0"
            )
        )

    def begin(self, attempt: int, step: int) -> None:
        """An attempt up to its first step."""
        self.happened(events.AttemptBegan(self.t, attempt))
        self.happened(events.PortPicked(self.t + 0.4, attempt, "10.0.0.1", 29500))
        for rank in range(self.ranks):
            self.happened(events.RankStarted(self.t + 1.0 + rank / 1000, attempt, rank, 20000 + rank))
        self.t += 20.0
        for rank in range(self.ranks):
            held = {"parameters_bytes": 2 * GIB, "gradients_bytes": GIB // 2, "optimizer_bytes": 6 * GIB}
            held["optimizer_bytes"] += (rank % 16 == 15) * GIB
            self.report(attempt, rank, kind="memory", **held)
            self.report(attempt, rank, kind="phase", phase="train")
        if step:
            self.report(attempt, 0, kind="event", event="resume", step=step, path=self.checkpoint(step))

    def report(self, attempt: int, rank: int, **record: Any) -> None:
        self.happened(events.RankReported(round(self.t, 3), attempt, rank, record))

    def checkpoint(self, step: int) -> str:
        return f"{self.run.path}/checkpoints/step-{step:08d}"

    def step(self, attempt: int, step: int) -> None:
        """One step of all ranks."""
        self.t += STEP_S
        noise = random.Random(step).gauss(0, 0.03)
        line = {
            "step": step, "loss": 2.1 + 8.8 / (1 + step / 90) + noise, "lr": 3e-4 * min(1, step / 200),
            "grad_norm": 0.4 + 3 / (1 + step / 40) + abs(noise), "tokens": 4_194_304, "tokens_seen": 4_194_304 * step,
            "tokens_per_s": 4_194_304 / STEP_S * (1 - 0.3 * (step % 400 < 3) + noise),
            "step_s": STEP_S * (1 - noise / 3),
            "peak_bytes": 31 * GIB, "loss_scale": None, "mfu": 0.41 + noise / 10, "attempt": attempt,
        }  # fmt: skip
        self._waiting[self.run.metrics].append(json.dumps(line).encode() + b"\n")
        if step % int(KEPT_S) == 0:
            steps = dict.fromkeys(range(self.ranks), step)
            if SLOW in steps:
                steps[SLOW] = max(1, int(step * 0.62))
            if BEHIND in steps:
                steps[BEHIND] = max(1, step - 12)
            self.happened(events.Progressed(round(self.t, 3), attempt, fold_steps(steps)))
        if step % 500 == 0:
            self.report(attempt, 0, kind="phase", phase="checkpoint")
            self.t += 6.0
            self.report(attempt, 0, kind="event", event="checkpoint", step=step, path=self.checkpoint(step))
            self.report(attempt, 0, kind="phase", phase="train")

    def figures(self, attempt: int, step: int) -> None:
        """What ranks and nodes were last heard to do; the slow rank is slow by itself, and the others wait for it."""
        chance = random.Random(step)
        files = FigureFiles(self.run)
        for node in range(self.nodes):
            ranks = range(node * self.slots, (node + 1) * self.slots)
            parts = {str(rank): self._parts(rank, chance) for rank in ranks}
            devices = [
                {"busy": 0.2 if rank == SLOW else chance.gauss(0.9, 0.01), "memory_bytes": 31 * GIB, "watts": 640.0,
                 "celsius": 91.0 if rank == SLOW else chance.gauss(63, 2), "throttled": 0x40 * (rank == SLOW),
                 "ecc_errors": 0.0, "nvlink_sent_bytes_per_s": 4.1e10, "nvlink_received_bytes_per_s": 4.1e10}
                for rank in ranks
            ]  # fmt: skip
            told = {"cpu": chance.gauss(0.2, 0.02), "load": 24.0, "memory_bytes": 300 * GIB,
                    "memory_total_bytes": 2048 * GIB, "received_bytes_per_s": 9e9, "sent_bytes_per_s": 9e9,
                    "read_bytes_per_s": 2e8, "written_bytes_per_s": 1e7, "devices": devices}  # fmt: skip
            files.take(self.host(node * self.slots), protocol.Figures(attempt, parts, told))
        files.keep(replace(Story(self.run).state, t=self.t), last=True)

    def _parts(self, rank: int, chance: random.Random) -> dict[str, float]:
        slower = 1.6 if rank == SLOW else 1.0
        parts = {
            "data": 0.004,
            "forward": 0.24 * slower,
            "backward": 0.45 * slower,
            "optimizer": 0.03,
            "other": 0.01,
        }
        parts = {name: seconds * chance.gauss(1, 0.01) for name, seconds in parts.items()}
        return {"steps": 5, **parts, "communication": max(0.01, STEP_S + 0.15 - sum(parts.values()))}

    def fail(self, attempt: int, rank: int) -> None:
        self.happened(events.RankExited(round(self.t, 3), attempt, rank, 1, None, TAIL, None))
        for other in range(self.ranks):
            if other != rank:
                end = events.RankExited(round(self.t + 2, 3), attempt, other, None, "SIGTERM", "", None)
                self.happened(end)
        self.t += 8.0
        for node in range(self.nodes):
            self.happened(events.NodeIdle(round(self.t, 3), attempt, self.host(node * self.slots)))
        self.happened(events.Restarting(round(self.t, 3), 4.0, f"restart {attempt} of 5 in 4.0 s"))
        self.t += 4.0

    def flush(self) -> None:
        for path, lines in self._waiting.items():
            with path.open("ab") as file:
                file.writelines(lines)
            lines.clear()


def noisy_steps(recorder: Recorder, attempt: int, step: int) -> None:
    """A line of steps as a run writes it whose ranks go their own ways: 10 KB."""
    steps = {rank: max(1, step - (rank * 7919 + step) % 97) for rank in range(recorder.ranks)}
    recorder.happened(events.Progressed(round(recorder.t, 3), attempt, {str(r): s for r, s in steps.items()}))


def write_logs(run: RunDir, attempt: int, ranks: int, host: Any) -> None:
    run.logs(attempt).mkdir(parents=True, exist_ok=True)
    for rank in range(ranks):
        lines = [
            f"[{host(rank)}] [Warning] step {n}: loss is fine [/bold] make[2]: [link=x]" for n in range(20)
        ]
        if rank % 8 == 0:
            lines.append("NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>")
        run.log(attempt, rank).write_text("\n".join([*lines, f"rank {rank} says hello"]) + "\n")


def record(folder: Path, nodes: int, slots: int, steps: int, alive: bool, journal_mb: int = 0) -> Recorder:
    """Write the run up to `steps`; it has ended, but for `alive`, when this process leads it."""
    folder.mkdir(parents=True, exist_ok=False)
    run = RunDir(folder.resolve())
    total = steps * 2 if alive else steps
    recorder = Recorder(run, nodes, slots, total, time.time() - steps * STEP_S - 100)
    pid = os.getpid()
    recorder.create({"host": socket.gethostname(), "pid": pid, "created": started_at(pid), "socket": None})
    recorder.begin(1, 0)
    half = steps // 2
    for step in range(1, half + 1):
        recorder.step(1, step)
    recorder.fail(1, min(77, recorder.ranks - 1))
    recorder.begin(2, half)
    while recorder.journal_bytes < journal_mb << 20:
        noisy_steps(recorder, 2, half)
        recorder.t += 0.01
        if recorder.journal_bytes % (64 << 20) < 16384:
            recorder.flush()
    for step in range(half + 1, steps + 1):
        recorder.step(2, step)
    if not alive:
        for rank in range(recorder.ranks):
            recorder.report(2, rank, kind="done")
            recorder.happened(events.RankExited(round(recorder.t + 1, 3), 2, rank, 0, None, "", None))
        recorder.happened(events.Ended(round(recorder.t + 2, 3), "finished", 0))
    recorder.flush()
    recorder.figures(2, steps)
    write_logs(run, 2, recorder.ranks, recorder.host)
    return recorder


def live(recorder: Recorder, first: int, seconds: float) -> Iterator[int]:
    """One step a second from now on."""
    began = time.monotonic()
    for step in range(first, first + math.ceil(seconds)):
        recorder.step(2, step)
        recorder.flush()
        yield step
        time.sleep(max(0.0, began + step - first + 1 - time.monotonic()))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--nodes", type=int, default=128)
    parser.add_argument("--slots", type=int, default=8)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--journal-mb", type=int, default=0, help="fill the journal up to this size")
    parser.add_argument("--bookmark", action="store_true", help="as the controller's process leaves one")
    parser.add_argument("--live", type=float, default=0.0, metavar="SECONDS")
    asked = parser.parse_args()
    recorder = record(asked.folder, asked.nodes, asked.slots, asked.steps, asked.live > 0, asked.journal_mb)
    if asked.bookmark:
        bookmark.save(recorder.run, Story(recorder.run).mark)
    print(recorder.run.path, flush=True)
    for _ in live(recorder, asked.steps + 1, asked.live):
        pass


if __name__ == "__main__":
    main()
