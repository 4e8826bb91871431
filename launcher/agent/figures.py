"""What this node and its ranks are doing, in numbers: /proc, its devices, and what ranks tell of their steps.

Rates are means since the look before. What a node does not have is left out: no devices, no /proc/diskstats.
"""

import os
import selectors
import time
from typing import Any, Dict, List, Tuple

from launcher.agent.nvidia import Devices

EVERY_S = 5.0  # between two messages
SECTOR_BYTES = 512  # in /proc/diskstats, whatever the drive's own are


class StepTimes:
    """What ranks told of the parts of their steps since it was last handed on."""

    def __init__(self) -> None:
        self._sums: Dict[int, Dict[str, float]] = {}

    def add(self, rank: int, parts: Any) -> None:
        """One step's parts, in seconds. From user code: what is no number is left out."""
        if not isinstance(parts, dict):
            return
        sums = self._sums.setdefault(rank, {"steps": 0})
        sums["steps"] += 1
        for name, seconds in parts.items():
            if isinstance(seconds, float):
                sums[name] = sums.get(name, 0.0) + seconds

    def take(self) -> Dict[str, Dict[str, float]]:
        """Rank -> steps, and seconds of each part a step."""
        taken, self._sums = self._sums, {}
        return {
            str(rank): {
                name: value if name == "steps" else round(value / sums["steps"], 6)
                for name, value in sums.items()
            }
            for rank, sums in taken.items()
        }


class Node:
    """CPU, memory, network and disks, by the kernel's counters."""

    def __init__(self) -> None:
        self._before: Tuple[float, Dict[str, float]] = (time.monotonic(), counters())

    def look(self) -> Dict[str, Any]:
        """Cpu (share busy), load, memory_bytes (in use), memory_total_bytes, and bytes a second in and out."""
        now, (before, old), new = time.monotonic(), self._before, counters()
        self._before = now, new
        found: Dict[str, Any] = {"load": os.getloadavg()[0]}
        found.update(memory())
        passed = new.get("cpu", 0) - old.get("cpu", 0)
        if passed > 0:
            found["cpu"] = round(max(0.0, 1 - (new["idle"] - old["idle"]) / passed), 4)
        for name in ("received", "sent", "read", "written"):
            if name in new and name in old and now > before:
                found[name + "_bytes_per_s"] = round(max(0.0, new[name] - old[name]) / (now - before))
        return found


def counters() -> Dict[str, float]:
    """The kernel's counters: of CPU time all and idle, of network and disks bytes."""
    found: Dict[str, float] = {}
    for line in _lines("/proc/stat")[:1]:
        ticks = [float(word) for word in line.split()[1:9]]  # guests' time is in user's already
        found.update(cpu=sum(ticks), idle=ticks[3] + ticks[4])
    cards = [line.replace(":", " ").split() for line in _lines("/proc/net/dev")[2:]]
    real = [card for card in cards if os.path.exists("/sys/class/net/%s/device" % card[0])]
    for card in real or [card for card in cards if card[0] != "lo"]:  # in a container none is
        found["received"] = found.get("received", 0) + float(card[1])
        found["sent"] = found.get("sent", 0) + float(card[9])
    for words in map(str.split, _lines("/proc/diskstats")):
        if os.path.exists("/sys/block/%s/device" % words[2]):
            found["read"] = found.get("read", 0) + float(words[5]) * SECTOR_BYTES
            found["written"] = found.get("written", 0) + float(words[9]) * SECTOR_BYTES
    return found


def memory() -> Dict[str, int]:
    """Bytes in use, and in all."""
    sizes = {line.split(":")[0]: int(line.split()[1]) << 10 for line in _lines("/proc/meminfo")}
    if "MemAvailable" not in sizes:
        return {}
    total = sizes["MemTotal"]
    return {"memory_bytes": total - sizes["MemAvailable"], "memory_total_bytes": total}


def _lines(path: str) -> List[str]:
    try:
        with open(path) as file:
            return file.read().splitlines()
    except OSError:
        return []


class Figures:
    """All of it, for one agent."""

    def __init__(self, selector: selectors.BaseSelector) -> None:
        self.times = StepTimes()
        self._node, self._devices = Node(), Devices(selector)
        self._told = time.monotonic()

    def begin(self) -> None:
        """An attempt begins here."""
        self.times = StepTimes()
        self._devices.begin()

    def due(self, now: float) -> bool:
        """Whether it is time to tell them."""
        return now - self._told >= EVERY_S

    def take(self, now: float) -> Tuple[Dict[str, Dict[str, float]], Dict[str, Any]]:
        """What ranks told, and the node's own, since the last time."""
        self._told = now
        node = self._node.look()
        devices = self._devices.look()
        return self.times.take(), dict(node, devices=devices) if devices else node

    def close(self) -> None:
        """End what was started for this."""
        self._devices.close()
