"""How many merged log lines a second one controller takes in through the real local path, and whether any is lost.

    python scripts/bench/logs.py [--ranks 4] [--lines 500000] [--rounds 3]

Flood: ranks write as fast as they can; lines a second are counted against the controller's CPU time beyond that of an
empty run, so that the ranks' own share of the cores does not matter. Paced: ranks write 10,000 lines a second each, and
say by how much they came late; and it is noted when the controller takes the agent's heartbeats in, which are sent a
second apart. Output goes to /dev/null and to a file in turn; every line is looked for afterwards.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

RANK = """
import os, sys, time
lines, a_second = int(sys.argv[1]), int(sys.argv[2])
rank, text = os.environ["RANK"], "x" * 60
began, done = time.monotonic(), 0
while done < lines:
    part = min(lines - done, 100)
    os.write(1, "".join(f"rank {rank} line {done + n} {text}\\n" for n in range(part)).encode())
    done += part
    if a_second:
        time.sleep(max(0.0, began + done / a_second - time.monotonic()))
late = time.monotonic() - began - lines / a_second if a_second else 0.0
open(f"late-{rank}", "w").write(str(late))
"""


LAUNCH = """
import time
from launcher import controller, protocol
from launcher.cli.main import main
take = controller.Controller._take
def noting(self, host, message):
    if isinstance(message, protocol.Heartbeat):
        print(time.monotonic(), file=beats, flush=True)
    take(self, host, message)
controller.Controller._take = noting
with open("beats", "w") as beats:
    main()
"""


@dataclass(frozen=True)
class Taken:
    """What a run took: wall and controller CPU seconds, the controller's peak RSS, how late its ranks were, and its
    latest heartbeat (NaN where there were not three).
    """

    wall_s: float
    cpu_s: float
    peak_bytes: int
    late_s: float
    beat_late_s: float


def stat_of(pid: int) -> tuple[float, int]:
    """CPU seconds of a process by itself, and its peak resident bytes."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    status = Path(f"/proc/{pid}/status").read_text()
    peak = next((int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")), 0)
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"), peak << 10


def run(folder: Path, ranks: int, lines: int, a_second: int, out: Path) -> Taken:
    """One run with its output in `out`. Raises AssertionError when a line is missing, there or in the ranks' logs."""
    (folder / "rank.py").write_text(RANK)
    command = [
        sys.executable,
        "-c",
        LAUNCH,
        "launch",
        "--nproc",
        str(ranks),
        "--script",
        "rank.py",
    ]
    began = time.perf_counter()
    with out.open("wb") as stdout:
        process = subprocess.Popen(
            [*command, "--", str(lines), str(a_second)], cwd=folder, stdout=stdout, stderr=subprocess.DEVNULL
        )
        cpu_s, peak = 0.0, 0
        while process.poll() is None:
            now, peak = stat_of(process.pid)[0], max(peak, stat_of(process.pid)[1])
            cpu_s = max(cpu_s, now)
            time.sleep(0.02)
    wall_s = time.perf_counter() - began
    assert process.returncode == 0, process.returncode
    logs = sorted((folder / "runs" / "latest" / "logs" / "attempt-1").iterdir())
    text = "x" * 60
    for rank, log in enumerate(logs):
        assert log.read_bytes() == "".join(f"rank {rank} line {n} {text}\n" for n in range(lines)).encode()
    if out.is_file():
        with out.open("rb") as merged:
            assert sum(1 for _ in merged) == ranks * lines, "lines are missing from the merged view"
    late_s = max(float((folder / f"late-{rank}").read_text()) for rank in range(ranks))
    beats = [float(line) for line in (folder / "beats").read_text().split()][
        :-1
    ]  # the last one comes with the end
    gaps = [after - before for before, after in itertools.pairwise(beats)]
    return Taken(wall_s, cpu_s, peak, late_s, max(gaps) - 1.0 if len(gaps) > 1 else float("nan"))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--lines", type=int, default=500_000, help="of each rank")
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    print("| ranks write | output to | merged lines/s of controller CPU | wall lines/s | controller CPU | its peak RSS "
          "| ranks late by | heartbeats late by |\n| --- | --- | --- | --- | --- | --- | --- | --- |")  # fmt: skip
    for name, lines, a_second in (("flood", asked.lines, 0), ("10,000 lines/s each", 50_000, 10_000)):
        for out_name in ("/dev/null", "a file"):
            taken, empty_s = [], []
            for _ in range(asked.rounds):
                with tempfile.TemporaryDirectory() as folder:
                    out = Path(os.devnull) if out_name == "/dev/null" else Path(folder, "out")
                    empty_s.append(run(Path(folder), asked.ranks, 1, 0, out).cpu_s)
                    taken.append(run(Path(folder), asked.ranks, lines, a_second, out))
            total, middle = asked.ranks * lines, statistics.median
            cpu_s = middle(one.cpu_s for one in taken) - middle(empty_s)
            wall_s = middle(one.wall_s for one in taken)
            late_s, beat_s = max(one.late_s for one in taken), max(one.beat_late_s for one in taken)
            print(
                f"| {name} | {out_name} | {total / max(cpu_s, 0.01):,.0f} | {total / wall_s:,.0f} | "
                f"{cpu_s / wall_s:.0%} of a core | {max(one.peak_bytes for one in taken) / 1e6:.0f} MB | "
                f"{late_s:.3f} s | {beat_s:.3f} s |", flush=True
            )  # fmt: skip


if __name__ == "__main__":
    main()
