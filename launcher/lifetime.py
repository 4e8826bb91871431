"""When a process was started: what tells a living one from another that got its pid later."""

from __future__ import annotations

import os

SAME_S = 2.0  # the time since boot and the wall clock drift a little apart


def started_at(pid: int) -> float | None:
    """Unix time at which the process started; None when there is none, or only its zombie.

    Linux tells it in two small files; elsewhere psutil knows where to ask (and costs 30 ms to import).
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            words = file.read().rpartition(b")")[2].split()  # the name before it may hold anything
        with open("/proc/stat", "rb") as file:
            booted = next(int(line.split()[1]) for line in file if line.startswith(b"btime "))
    except FileNotFoundError:
        return _ask_psutil(pid) if not os.path.exists("/proc/stat") else None
    except ProcessLookupError:
        return None
    return None if words[0] == b"Z" else booted + int(words[19]) / os.sysconf("SC_CLK_TCK")


def _ask_psutil(pid: int) -> float | None:
    import psutil

    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else float(process.create_time())
    except psutil.Error:
        return None
