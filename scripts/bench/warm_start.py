"""Start and restart of ranks against torchrun: launch to past `init_process_group`, SIGKILL to the first new step.

    python scripts/bench/warm_start.py [--ranks 8] [--rounds 5] [--restarts 20] [--without-default]

Launchers take turns in one run, so that a noisy machine hits all alike; medians, ratios to torchrun and successes are
printed as Markdown tables for docs/benchmarks.md. torchrun's restarts are measured as it comes, and with
TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1, without which some of them lose their rendezvous (pytorch#135712).
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

START = """
import os, time
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
now = time.time()
total = torch.ones(1)
dist.all_reduce(total)
fd = os.open(os.environ["BENCH_OUT"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
os.write(fd, f"{now}\\n".encode())
print("rank", dist.get_rank(), "of", int(total))
dist.destroy_process_group()
"""

TRAIN = """
import os, time
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
fd = os.open(os.environ["BENCH_OUT"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
for step in range(10 if attempt else 100_000):
    optimizer.zero_grad()
    model(torch.randn(8, 64)).square().mean().backward()
    optimizer.step()
    os.write(fd, f"{time.time()} {attempt} {step} {dist.get_rank()} {os.getpid()}\\n".encode())
    time.sleep(0.02)
dist.destroy_process_group()
"""

FAIR = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
GIVE_UP_S = 40.0
BIN = Path(sys.executable).parent


def command(launcher: str, script: Path, ranks: int, restarts: int) -> tuple[list[str], dict[str, str]]:
    if launcher.startswith("torchrun"):
        words = [
            str(BIN / "torchrun"),
            f"--nproc-per-node={ranks}",
            f"--max-restarts={restarts}",
            str(script),
        ]
        return words, FAIR if launcher == "torchrun, fair" else {}
    words = [str(BIN / "distperf"), "launch", "-q", "--script", str(script), "--nproc", str(ranks)]
    warm = "false" if launcher == "distperf, cold" else "auto"
    return [*words, "--set", f"launch.max_restarts={restarts}", "--set", f"launch.warm_start={warm}"], {}


class Run:
    """One launch in a folder of its own, and the lines that its ranks have written."""

    def __init__(self, launcher: str, script: str, ranks: int, restarts: int = 0) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.out = Path(self.folder.name, "out")
        path = Path(self.folder.name, "bench.py")
        path.write_text(script)
        words, env = command(launcher, path, ranks, restarts)
        self.began = time.time()
        self.process = subprocess.Popen(
            words, cwd=self.folder.name, env={**os.environ, "BENCH_OUT": str(self.out), "OMP_NUM_THREADS": "1", **env},
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip

    def lines(self) -> list[list[str]]:
        text = self.out.read_text() if self.out.exists() else ""
        return [line.split() for line in text.splitlines()]

    def wait_for(self, wanted: object) -> bool:
        """Poll until `wanted(lines)` holds; False when it does not within the limit."""
        deadline = time.time() + GIVE_UP_S
        while time.time() < deadline:
            if wanted(self.lines()):
                return True
            time.sleep(0.02)
        return False

    def end(self) -> None:
        try:
            self.process.wait(timeout=GIVE_UP_S)
        except subprocess.TimeoutExpired:
            self._kill()
        self.folder.cleanup()

    def _kill(self) -> None:
        """End it and what it leaves: ranks outlive a killed torchrun, and are known by this run's environment."""
        self.process.kill()
        self.process.wait()
        mark = f"BENCH_OUT={self.out}".encode()
        for name in filter(str.isdigit, os.listdir("/proc")):
            try:
                if mark in Path("/proc", name, "environ").read_bytes().split(b"\0"):
                    os.kill(int(name), signal.SIGKILL)
            except OSError:  # ended meanwhile, or another user's
                continue


def start_s(launcher: str, ranks: int) -> float | None:
    """Seconds from the launch to the last rank past init_process_group; None when it fails."""
    run = Run(launcher, START, ranks)
    done = run.wait_for(lambda lines: len(lines) == ranks)
    times = [float(line[0]) for line in run.lines()]
    run.end()
    return max(times) - run.began if done else None


def restart_s(launcher: str, ranks: int, victim: int) -> float | None:
    """Seconds from SIGKILL of a rank to the first step of the next attempt; None when there is none."""
    run = Run(launcher, TRAIN, ranks, restarts=3)
    try:
        if not run.wait_for(
            lambda lines: any(int(line[2]) >= 3 and int(line[3]) == victim for line in lines)
        ):
            return None
        pid = next(int(line[4]) for line in run.lines() if int(line[3]) == victim)
        killed = time.time()
        os.kill(pid, signal.SIGKILL)
        if not run.wait_for(lambda lines: any(line[1] == "1" for line in lines)):
            return None
        return min(float(line[0]) for line in run.lines() if line[1] == "1") - killed
    finally:
        run.end()


def table(title: str, results: dict[str, list[float | None]], reference: str) -> None:
    good = {name: [s for s in values if s is not None] for name, values in results.items()}
    base = statistics.median(good[reference]) if good[reference] else float("nan")
    print(f"\n| {title} | median s (min, max) | of {reference} | succeeded |\n| --- | --- | --- | --- |")
    for name, values in good.items():
        if not values:
            print(f"| {name} | - | - | 0 of {len(results[name])} |")
            continue
        middle = statistics.median(values)
        shown = f"{middle:.2f} ({min(values):.2f}, {max(values):.2f})"
        print(f"| {name} | {shown} | {middle / base:.2f} | {len(values)} of {len(results[name])} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--restarts", type=int, default=20)
    parser.add_argument(
        "--without-default", action="store_true", help="restart torchrun as the fair reference only"
    )
    args = parser.parse_args()
    starts: dict[str, list[float | None]] = {"torchrun": [], "distperf": [], "distperf, cold": []}
    for _ in range(args.rounds):
        for name, values in starts.items():
            values.append(start_s(name, args.ranks))
    table(f"launch to past init_process_group, {args.ranks} ranks", starts, "torchrun")
    names = ["torchrun, fair", "distperf"] + ([] if args.without_default else ["torchrun"])
    again: dict[str, list[float | None]] = {name: [] for name in names}
    for turn in range(args.restarts):
        for name, values in again.items():
            values.append(restart_s(name, 2, turn % 2))
    table("SIGKILL of 1 of 2 ranks to the first new step", again, "torchrun, fair")


if __name__ == "__main__":
    main()
