"""What it takes to start ranks in a job of SLURM's: agents by srun against the same launch over SSH, queue apart.

    python scripts/bench/srun.py [--nodes 2] [--rounds 9]        as root, with what tests/integration/slurm.py needs

A real SLURM on hosts of scripts/testbed. One job holds all nodes; in it, the two ways take turns, and each is timed
from the command to the first line of the last rank, of a script without torch that prints the time. What SLURM takes
from sbatch to the batch shell's first line, with all nodes idle, is measured beside it.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

WAYS = {"srun": (), "ssh": ("--set", "slurm.agents=ssh")}
SCRIPT = 'import time\nprint("first", time.time(), flush=True)\n'


def started_s(way: str) -> float:
    """Seconds from the command to the last rank's first line; inside the job."""
    command = [sys.executable, "-m", "launcher", "launch", "--script", "first.py", *WAYS[way]]
    began = time.time()
    said = subprocess.run(command, capture_output=True, text=True, check=True, stdin=subprocess.DEVNULL)
    return max(map(float, re.findall(r"first ([0-9.]+)", said.stdout))) - began


def inside(rounds: int) -> None:
    """The job: a line for each start, after one of each that fills caches."""
    print("shell", time.time(), flush=True)
    for turn in range(rounds + 1):
        for way in WAYS:
            took = started_s(way)
            if turn:
                print(way, took, flush=True)


def measured(nodes: int, rounds: int) -> dict[str, list[float]]:
    """Seconds by what took them."""
    from integration.lab import Lab
    from integration.slurm import Slurm

    lab = Lab(f"srun-{os.getpid()}")
    try:
        lab.testbed("up", nodes + 1)
        slurm = Slurm(lab)
        slurm.start({k: "CPUs=2 RealMemory=1000" for k in range(2, nodes + 2)})
        (slurm.folder / "first.py").write_text(SCRIPT)
        config = slurm.folder / "ssh_config"
        config.write_text((lab.dir / "ssh_config").read_text().replace(str(lab.dir), str(slurm.folder)))
        for name in ("key", "known_hosts"):
            shutil.chown(shutil.copy(lab.dir / name, slurm.folder), int(slurm.run("id -u")))
        command = f"PYTHONPATH={ROOT} {sys.executable} {Path(__file__).resolve()} --inside --rounds {rounds}"
        began = time.time()
        said = slurm.job(f"-N{nodes}", f"DISTPERF_SSH_CONFIG={config} {command}", 60.0 * rounds)
    finally:
        lab.testbed("down")
    found = {name: [float(text) for text in re.findall(rf"^{name} (\S+)$", said, re.M)] for name in WAYS}
    assert all(len(values) == rounds for values in found.values()), said
    return {**found, "shell": [float(text) - began for text in re.findall(r"^shell (\S+)$", said, re.M)]}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.inside:
        inside(asked.rounds)
        return
    found = measured(asked.nodes, asked.rounds)
    print("| command to the first line of every rank | median s (min, max) |\n| --- | --- |")
    for way in WAYS:
        values = found[way]
        print(f"| agents by {way} | {statistics.median(values):.2f} ({min(values):.2f}, {max(values):.2f}) |")
    more = [srun - ssh for srun, ssh in zip(found["srun"], found["ssh"], strict=True)]
    print(f"| srun over ssh, paired | {statistics.median(more):.2f} ({min(more):.2f}, {max(more):.2f}) |")
    print(f"| SLURM itself: sbatch to the batch shell | {found['shell'][0]:.2f} |")


if __name__ == "__main__":
    main()
