"""A program of ours as several ranks on this machine, for as long as it takes."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence

LOOPBACK = "127.0.0.1"
LOOK_S = 0.02


def run_as_ranks(count: int, arguments: Sequence[str]) -> int:
    """Run this Python with these arguments as ranks that meet on loopback. Returns the first code that is not 0.

    None is left behind, however this ends.
    """
    store = {"WORLD_SIZE": str(count), "MASTER_ADDR": LOOPBACK, "MASTER_PORT": str(_free_port())}
    ranks: list[subprocess.Popen[bytes]] = []
    try:
        for rank in range(count):
            place = {"RANK": str(rank), "LOCAL_RANK": str(rank), "DISTPERF_ADDRESS": LOOPBACK}
            environ = {"OMP_NUM_THREADS": str(max(1, _cpus() // count)), **os.environ, **store, **place}
            ranks.append(subprocess.Popen([sys.executable, *arguments], env=environ))
        return _first_failure(ranks)
    finally:
        for process in ranks:
            process.kill()
            process.wait()


def _first_failure(ranks: Sequence[subprocess.Popen[bytes]]) -> int:
    """Wait for all to end well, or for the first that does not."""
    while True:
        codes = [process.poll() for process in ranks]
        failed = [code for code in codes if code]
        if failed or None not in codes:
            return abs(failed[0]) if failed else 0
        time.sleep(LOOK_S)


def _cpus() -> int:
    return len(os.sched_getaffinity(0))


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind((LOOPBACK, 0))
        return int(listener.getsockname()[1])
