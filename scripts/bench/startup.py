"""What starting through distperf costs: `distperf launch` of a trivial script against `python script`, and `--help`.

    python scripts/bench/startup.py [--rounds 15]

Both are run in turn in one process group, so that a noisy machine hits both alike; medians are printed as a Markdown
table for docs/benchmarks.md. torchrun is measured beside them where torch is installed.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SCRIPT = 'import os\nprint("rank", os.environ.get("RANK", "-"), "of", os.environ.get("WORLD_SIZE", "-"))\n'


def wall_s(command: list[str], folder: str) -> float:
    began = time.perf_counter()
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - began


def cpu_s(command: list[str], folder: str) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    wall_s(command, folder)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    bin_ = Path(sys.executable).parent
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "trivial.py")
        script.write_text(SCRIPT)
        launch = [str(bin_ / "distperf"), "launch", "-q", "--script", str(script)]
        commands = {
            "`python script`": [sys.executable, str(script)],
            "`distperf launch --script`, 1 rank": [*launch, "--nproc", "1"],
            "`distperf launch --script`, 8 ranks": [*launch, "--nproc", "8"],
            "`torchrun`, 1 rank": [str(bin_ / "torchrun"), "--standalone", "--nproc-per-node=1", str(script)],
        }
        walls = {name: [] for name in commands}
        for _ in range(rounds):
            for name, command in commands.items():
                walls[name].append(wall_s(command, folder))
        help_cpu = [cpu_s([str(bin_ / "distperf"), "--help"], folder) for _ in range(rounds)]
    plain = statistics.median(walls["`python script`"])
    print("| command | wall s, median (min) | over `python script`, s |\n| --- | --- | --- |")
    for name, values in walls.items():
        middle = statistics.median(values)
        print(f"| {name} | {middle:.3f} ({min(values):.3f}) | {middle - plain:.3f} |")
    print(f"\n`distperf --help`: {statistics.median(help_cpu):.3f} s of CPU time (median of {rounds})")


if __name__ == "__main__":
    main()
