"""What watching costs: the dashboard on a run of 1,024 ranks that makes a step a second, with a journal of any size.

    python scripts/bench/dashboard.py [--journal-mb 1024] [--seconds 30]

The real program in tmux at 160x50. First paint: from the command to the first row with data, seen by capture-pane. Key
to paint: from send-keys to the view on the screen, with what tmux takes. CPU: user and system time of the process over
the seconds after it has settled, in the overview and in the ranks.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOCKET = "distperf-bench"
VIEWS = (("2", "ranks, by host"), ("5", "newest first"), ("6", "where"), ("1", "what happened"))


def tmux(*args: str) -> str:
    """A command of a tmux server of our own."""
    done = subprocess.run(["tmux", "-L", SOCKET, *args], check=True, capture_output=True, text=True)
    return done.stdout


def until_shown(text: str, within_s: float = 60.0) -> float:
    """Seconds until the text is on the screen."""
    began = time.perf_counter()
    while text not in tmux("capture-pane", "-p"):
        if time.perf_counter() - began > within_s:
            raise SystemExit(f"{text!r} never came:\n{tmux('capture-pane', '-p')}")
    return time.perf_counter() - began


def cpu_s(pid: int) -> float:
    """User and system time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def share(pid: int, seconds: float) -> float:
    """Of one core, over some seconds."""
    before, began = cpu_s(pid), time.perf_counter()
    time.sleep(seconds)
    return (cpu_s(pid) - before) / (time.perf_counter() - began)


def dashboard_pid() -> int:
    """The child of the shell in the pane."""
    shell = tmux("display-message", "-p", "#{pane_pid}").strip()
    return int(subprocess.check_output(["pgrep", "-P", shell], text=True).split()[0])


def measure(folder: Path, seconds: float, starts: int) -> None:
    """Start it some times, press keys, let it run; prints a row of a table."""
    command = f"{Path(sys.executable).with_name('distperf')} status {folder}"
    paints, computed = [], []
    tmux("-f", "/dev/null", "new-session", "-d", "-x", "160", "-y", "50", "bash --norc")
    for last in [False] * (starts - 1) + [True]:
        tmux("send-keys", command, "Enter")
        paints.append(until_shown("what happened"))
        computed.append(cpu_s(dashboard_pid()))
        if not last:
            tmux("send-keys", "q")
            time.sleep(1.0)
            tmux("send-keys", "clear", "Enter")
            time.sleep(0.3)
    pid = dashboard_pid()
    keys = []
    for _ in range(5):
        for key, text in VIEWS:
            tmux("send-keys", key)
            keys.append(until_shown(text))
            time.sleep(0.1)
    time.sleep(3.0)
    overview = share(pid, seconds)
    tmux("send-keys", "2")
    time.sleep(1.0)
    ranks = share(pid, seconds)
    size = (folder / "events.jsonl").stat().st_size / 1e6
    busy = f"{overview:.1%} | {ranks:.1%} | {os.getloadavg()[0]:.1f}"
    print(f"| {size:,.0f} MB | {min(paints):.2f} s ({statistics.median(paints):.2f}) | {min(computed):.2f} s | "
          f"{1e3 * statistics.median(keys):.0f} ms ({1e3 * max(keys):.0f}) | {busy} |",
          flush=True)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--journal-mb", type=int, nargs="*", default=[0, 1024])
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--starts", type=int, default=3)
    asked = parser.parse_args()
    heads = ("journal", "first paint, best (median)", "CPU until then", "key to paint, median (worst)",
             "CPU, overview", "CPU, ranks", "load")  # fmt: skip
    print(f"| {' | '.join(heads)} |")
    print("|---|---|---|---|---|---|---|", flush=True)
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    for megabytes in asked.journal_mb:
        with tempfile.TemporaryDirectory() as parent:
            folder = Path(parent, "pretrain")
            recorder = [sys.executable, str(ROOT / "scripts/recorded_run.py"), str(folder), "--bookmark"]
            recorder += ["--journal-mb", str(megabytes), "--live", "3600"]
            with subprocess.Popen(recorder, env=env, stdout=subprocess.PIPE, text=True) as writer:
                assert writer.stdout is not None
                writer.stdout.readline()  # the folder is written; from here on, a step a second
                try:
                    measure(folder, asked.seconds, asked.starts)
                finally:
                    subprocess.run(["tmux", "-L", SOCKET, "kill-server"], check=False, capture_output=True)
                    writer.terminate()


if __name__ == "__main__":
    main()
