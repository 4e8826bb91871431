"""How long it takes until an agent answers on every host, against pdsh and clush that run `true` on the same hosts.

    python scripts/bench/fanout.py [--hosts 32] [--rounds 9]      as root, with pdsh and clustershell installed

Hosts are network namespaces with sshd (scripts/testbed). All log in as the same user by the same ssh configuration and
take turns; distperf is measured from a fresh interpreter's imports on, as its peers are, and does more: its agent is
shipped, started, and has told what the node is. `distperf, imported` leaves the imports out.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from integration.lab import Lab  # noqa: E402

HELLO = """
import sys, time
began = time.perf_counter()
from launcher.hostfile import Host
from launcher.nodes import Nodes
from launcher.transport.ssh import SshTransport
imported = time.perf_counter()
nodes = Nodes(SshTransport(config_path=sys.argv[1]))
nodes.open_all([Host(f"host{k}", (0,)) for k in range(1, int(sys.argv[2]) + 1)])
print(time.perf_counter() - imported, flush=True)
nodes.close()
"""


def hello(config: str, hosts: int) -> tuple[float, float]:
    """Seconds until all agents have said hello: from the interpreter's start, and without imports."""
    began = time.perf_counter()
    command = [sys.executable, "-c", HELLO, config, str(hosts)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert process.stdout is not None
    inner_s = float(process.stdout.readline())
    wall_s = time.perf_counter() - began
    process.wait()
    return wall_s, inner_s


def wall_s(command: list[str], **env: str) -> float:
    began = time.perf_counter()
    subprocess.run(command, check=True, env={**os.environ, **env}, stdin=subprocess.DEVNULL)
    return time.perf_counter() - began


def peers(lab: Lab, hosts: int) -> dict[str, Callable[[], float]]:
    """What others do for the same: one command on every host, at most as many at once as distperf."""
    names, config = f"host[1-{hosts}]", str(lab.dir / "ssh_config")
    options = lab.dir / "clush.conf"
    options.write_text(f"[Main]\nfanout: 64\nssh_user: trainer\nssh_options: -F {config}\n")
    return {
        "`clush`, fanout 64": lambda: wall_s(["clush", f"--conf={options}", "-q", "-w", names, "true"]),
        "`pdsh -R ssh`, fanout 64": lambda: wall_s(
            ["pdsh", "-R", "ssh", "-f", "64", "-l", "trainer", "-w", names, "true"],
            PDSH_SSH_ARGS_APPEND=f"-F {config}",
        ),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hosts", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=9)
    asked = parser.parse_args()
    lab = Lab(f"fanout-{os.getpid()}")
    try:
        lab.testbed("up", asked.hosts)
        others = peers(lab, asked.hosts)
        walls: dict[str, list[float]] = {
            "distperf": [],
            "distperf, imported": [],
            **{name: [] for name in others},
        }
        for _ in range(asked.rounds):
            whole, inner = hello(str(lab.dir / "ssh_config"), asked.hosts)
            walls["distperf"].append(whole)
            walls["distperf, imported"].append(inner)
            for name, measure in others.items():
                walls[name].append(measure())
    finally:
        lab.testbed("down")
    fastest = min(statistics.median(walls[name]) for name in others)
    print("| | median s (min, max) | of the fastest peer |\n| --- | --- | --- |")
    for name, values in walls.items():
        middle = statistics.median(values)
        print(f"| {name} | {middle:.2f} ({min(values):.2f}, {max(values):.2f}) | {middle / fastest:.2f} |")


if __name__ == "__main__":
    main()
