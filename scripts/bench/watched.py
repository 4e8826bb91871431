"""What it costs a run to be seen: steps while everything watches against steps while nothing does, in turn, in one run.

    python scripts/bench/watched.py [--pairs 20] [--block 4] [--first] [--apart]

Two ranks of training. launched: led by `distperf launch`, which keeps journal, metrics, figures and logs. watched: with
Prometheus (asked every five seconds), TensorBoard, Weights & Biases (offline), MLflow, and a dashboard in tmux, too.
Every other block of some seconds all processes but the ranks are stopped (SIGSTOP), so that nothing watches; in the
block after that they catch up, which makes them look a little worse than they are. Ranks never wait for any of them.
All of it shares this machine's cores with the ranks; on a cluster only the agent does.

--apart: ranks on the first half of the cores, all else on the others, as where a node has cores to spare.
--first (root): sessions of these processes before all others that run here.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

RECIPE = """
name: watched
model: {family: llama, layers: 6, hidden: 256, heads: 4, kv_heads: 4, ffn: 688, vocab: 2048}
data: {synthetic: true, seq_len: 128}
train: {steps: 100000, global_batch: 8, micro_batch: 4, seed: 1}
optimizer: {lr: 1e-4}
parallel: {zero: 2}
launch: {max_restarts: 0, grace_s: 2}
"""
EVERYTHING = {
    "tensorboard": "true",
    "wandb.project": "bench",
    "wandb.mode": "offline",
    "mlflow.experiment": "bench",
}
SOCKET = "distperf-watched"
SCRAPE_S = 5.0
SETTLE_S = 8.0
CATCH_UP_S = 0.5  # what waits in pipes comes in
DISTPERF = [sys.executable, "-m", "launcher"]


@dataclass(frozen=True)
class Running:
    """Processes of a run: its ranks, and every other one that there is because of it."""

    dir: Path
    ranks: list[psutil.Process]
    others: list[psutil.Process]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@contextmanager
def launched(folder: Path, **report: str) -> Iterator[Running]:
    """By the launcher, whose screen is a file."""
    keys = [word for key, value in report.items() for word in ("--set", f"report.{key}={value}")]
    with (folder / "screen.log").open("wb") as screen:
        leads = psutil.Popen(
            [*DISTPERF, "launch", "recipe.yaml", "--nproc", "2", "--no-check", *keys],
            cwd=folder, stdin=subprocess.DEVNULL, stdout=screen, stderr=screen,
        )  # fmt: skip
    try:
        status = wait_for_ranks(folder)
        ranks = [psutil.Process(rank["pid"]) for rank in status["ranks"]]
        others = [
            one for one in [psutil.Process(leads.pid), *leads.children(recursive=True)] if one not in ranks
        ]
        yield Running(Path(status["dir"]), ranks, others)
    finally:
        leads.send_signal(signal.SIGINT)
        leads.wait()


@contextmanager
def watched(folder: Path) -> Iterator[Running]:
    """With everything on."""
    port = free_port()
    over = threading.Event()
    scraper = threading.Thread(target=scrape, args=(port, over))
    tmux = ["tmux", "-L", SOCKET, "-f", "/dev/null"]
    with launched(folder, prometheus=str(port), **EVERYTHING) as running:
        scraper.start()
        command = " ".join([*DISTPERF, "status"])
        subprocess.run(
            [*tmux, "new-session", "-d", "-x", "160", "-y", "50", "-c", str(folder), command], check=True
        )
        try:
            pane = subprocess.check_output([*tmux, "display-message", "-p", "#{pane_pid} #{pid}"], text=True)
            seen_by = [psutil.Process(int(pid)) for pid in pane.split()]
            trackers = [one for one in running.others[0].children(recursive=True) if one not in running.ranks]
            yield Running(running.dir, running.ranks, [running.others[0], *trackers, *seen_by])
        finally:
            subprocess.run([*tmux, "kill-server"], check=False)
            over.set()
            scraper.join()


def scrape(port: int, over: threading.Event) -> None:
    """What Prometheus does."""
    while not over.wait(SCRAPE_S):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
                answer.read()
        except (urllib.error.URLError, ConnectionError):  # the run is ending
            return


def wait_for_ranks(folder: Path) -> dict:
    """`status --json`, once all ranks make steps."""
    while True:
        done = subprocess.run(
            [*DISTPERF, "status", "--json"], cwd=folder, capture_output=True, text=True, check=False
        )
        if done.returncode == 0 and (status := json.loads(done.stdout))["step"]:
            return status
        time.sleep(0.5)


def step_times(run: Path) -> dict[int, float]:
    """Seconds of every step that metrics.jsonl tells of."""
    lines = (json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines(keepends=True)
             if line.endswith("\n"))  # fmt: skip
    return {line["step"]: line["step_s"] for line in lines}


def cpu_s(processes: list[psutil.Process]) -> float:
    """User and system time."""
    return sum(sum(process.cpu_times()[:2]) for process in processes)


def place(running: Running, *, first: bool, apart: bool) -> None:
    """Where the processes run, and before whom."""
    cores = list(range(os.cpu_count() or 1))
    half = len(cores) // 2
    for processes, where in ((running.ranks, cores[:half]), (running.others, cores[half:])):
        for process in processes:
            if first:
                Path(f"/proc/{process.pid}/autogroup").write_text("-20")
            for thread in process.threads() if apart else []:
                os.sched_setaffinity(thread.id, where)


def compared(running: Running, pairs: int, seconds: float) -> tuple[list[float], float, float]:
    """Of each pair the seconds a step, watched over not watched; seconds a step; CPU of what watches, as a share."""
    marks, cpu, began = [], cpu_s(running.others), time.perf_counter()
    for _ in range(pairs):
        before = max(step_times(running.dir))
        time.sleep(seconds)
        between = max(step_times(running.dir))
        for process in running.others:
            process.suspend()
        time.sleep(seconds)
        for process in running.others:
            process.resume()
        time.sleep(CATCH_UP_S)
        marks.append((before, between, max(step_times(running.dir))))
    passed = time.perf_counter() - began
    took = step_times(running.dir)
    ratios, unwatched = [], []
    for before, between, after in marks:
        on = [took[step] for step in range(before + 1, between + 1)]
        off = [took[step] for step in range(between + 1, after)]  # the last one is watched, in part
        if on and off:  # a block was longer than a step
            ratios.append(statistics.fmean(on) / statistics.fmean(off))
            unwatched += off
    return ratios, statistics.fmean(unwatched), (cpu_s(running.others) - cpu) / passed


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--block", type=float, default=4.0)
    parser.add_argument("--first", action="store_true")
    parser.add_argument("--apart", action="store_true")
    asked = parser.parse_args()
    os.environ |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    print("| | a step, unwatched | watched, median (quartiles) of pairs | CPU of what watches |")
    print("|---|---|---|---|")
    for name, way in (("launched", launched), ("watched", watched)):
        with tempfile.TemporaryDirectory(prefix="watched-") as folder:
            (Path(folder) / "recipe.yaml").write_text(RECIPE)
            with way(Path(folder)) as running:
                place(running, first=asked.first, apart=asked.apart)
                time.sleep(SETTLE_S)
                ratios, step_s, cpu = compared(running, asked.pairs, asked.block)
        low, middle, high = (value - 1 for value in statistics.quantiles(ratios, n=4))
        print(
            f"| {name} | {step_s * 1000:.0f} ms | {middle:+.1%} ({low:+.1%} to {high:+.1%}) | {cpu:.1%} of a core |",
            flush=True,
        )


if __name__ == "__main__":
    main()
