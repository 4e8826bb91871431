"""What nvidia-smi tells of this node's devices: one that runs on for most of it, one a minute for NVLink's counters.

A start of nvidia-smi takes a second of a CPU, so that none is started more often. It may hang with its driver: nothing
here waits for its words, nor longer than KILL_S for its end.
"""

import os
import re
import selectors
import signal
import subprocess
import time
from typing import Callable, Dict, List, Optional, Tuple

from launcher.agent import processes

EVERY_S = 10
LINKS_EVERY_S = 60.0
FIELDS = ("index", "utilization.gpu", "memory.used", "memory.total", "temperature.gpu", "power.draw",
          "ecc.errors.uncorrected.volatile.total")  # fmt: skip
NAMES = ("index", "busy", "memory_bytes", "memory_total_bytes", "celsius", "watts", "ecc_errors",
         "throttled")  # fmt: skip
SCALES = {"busy": 0.01, "memory_bytes": 1 << 20, "memory_total_bytes": 1 << 20}
REASONS = ("clocks_event_reasons.active", "clocks_throttle_reasons.active")  # newer drivers', older ones'
MAX_LINE_BYTES = 4096
KILL_S = 1.0
DEVICE = re.compile(r"GPU (\d+):")
COUNTER = re.compile(r"Link \d+: Data (Tx|Rx): (\d+) KiB")
Counters = Dict[int, Tuple[int, int]]  # of each device, bytes that went out and came in over its links


class Devices:
    """The newest figures of every device."""

    def __init__(self, selector: selectors.BaseSelector) -> None:
        self._selector = selector
        self._smi: Optional[_Smi] = None
        self._reasons = list(REASONS)
        self._newest: Dict[int, Dict[str, float]] = {}
        self._links = Links(selector)

    def begin(self) -> None:
        """Start it, where there is one; with the older name of a field if it ends without a word of a device."""
        if self._smi is not None or not self._reasons:
            return
        fields = ",".join((*FIELDS, self._reasons.pop(0)))
        args = ["--query-gpu=" + fields, "--format=csv,noheader,nounits", "-l", str(EVERY_S)]
        try:
            self._smi = _Smi(self._selector, args, self._row, self._again)
        except OSError:
            self._reasons = []

    def _row(self, line: str) -> None:
        row = device_row(line)
        if row:
            self._newest[int(row.pop("index"))] = row
            self._reasons = []

    def _again(self) -> None:
        self._smi = None
        self.begin()

    def look(self) -> List[Dict[str, float]]:
        """Each device's newest figures, in their order."""
        if self._newest:
            self._links.ask(time.monotonic())
        return [
            dict(self._newest[index], **self._links.rates.get(index, {})) for index in sorted(self._newest)
        ]

    def close(self) -> None:
        """End what runs."""
        self._links.close()
        smi, self._smi = self._smi, None
        if smi is not None:
            smi.close()


class Links:
    """Bytes a second over each device's NVLinks, all of them together; nothing where there are none."""

    def __init__(self, selector: selectors.BaseSelector) -> None:
        self._selector = selector
        self._smi: Optional[_Smi] = None
        self._lines: List[str] = []
        self._asked = float("-inf")
        self._before: Tuple[float, Counters] = (0.0, {})
        self._absent = False
        self.rates: Dict[int, Dict[str, float]] = {}

    def ask(self, now: float) -> None:
        """Have the counters read, if it is time to and there are any."""
        if self._absent or self._smi is not None or now - self._asked < LINKS_EVERY_S:
            return
        self._asked, self._lines = now, []
        try:
            self._smi = _Smi(self._selector, ["nvlink", "-gt", "d"], self._lines.append, self._told)
        except OSError:
            self._absent = True

    def _told(self) -> None:
        self._smi = None
        now, (before, old), new = time.monotonic(), self._before, link_counters(self._lines)
        self._before, self._absent = (now, new), not new
        self.rates = link_rates(old, new, now - before)

    def close(self) -> None:
        """End what runs."""
        smi, self._smi = self._smi, None
        if smi is not None:
            smi.close()


class _Smi:
    """A running nvidia-smi; its lines as they come, and its end."""

    def __init__(
        self, selector: selectors.BaseSelector, args: List[str], line: Callable[[str], None],
        ended: Callable[[], None],
    ) -> None:  # fmt: skip
        """Raises OSError where there is no nvidia-smi."""
        parent = os.getpid()
        self._process = subprocess.Popen(
            ["nvidia-smi", *args], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            preexec_fn=lambda: processes.die_with_parent(parent),
        )  # fmt: skip
        assert self._process.stdout is not None
        self._fd = self._process.stdout.fileno()
        self._selector, self._line, self._ended = selector, line, ended
        self._partial = b""
        selector.register(self._fd, selectors.EVENT_READ, self._read)

    def _read(self, fd: int) -> None:
        data = os.read(fd, 1 << 16)
        *lines, self._partial = (self._partial + data).split(b"\n")
        self._partial = self._partial[-MAX_LINE_BYTES:]
        for line in lines:
            self._line(line.decode("utf-8", "replace"))
        if not data:
            self.close()
            self._ended()

    def close(self) -> None:
        self._selector.unregister(self._fd)
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._process.send_signal(signal.SIGKILL)
        try:
            self._process.wait(KILL_S)
        except subprocess.TimeoutExpired:  # its driver holds it
            pass


def device_row(line: str) -> Dict[str, float]:
    """A line of nvidia-smi's as NAMES; without what this device does not tell, empty where it is no such line."""
    words = [word.strip() for word in line.split(",")]
    if len(words) != len(NAMES) or not words[0].isdigit():
        return {}
    found: Dict[str, float] = {}
    for at, name in enumerate(NAMES):
        word = words[at]
        try:
            value = float(int(word, 16)) if word.startswith("0x") else float(word)
        except ValueError:  # [N/A], [Not Supported]
            continue
        found[name] = round(value * SCALES.get(name, 1), 4)
    return found


def link_counters(lines: List[str]) -> Counters:
    """What `nvidia-smi nvlink -gt d` says; a link that is not there, or does not tell, counts nothing."""
    found: Counters = {}
    device = -1
    for line in lines:
        named, counted = DEVICE.match(line), COUNTER.search(line)
        if named:
            device = int(named.group(1))
        elif counted and device >= 0:
            sent, received = found.get(device, (0, 0))
            more = int(counted.group(2)) << 10
            found[device] = (sent + more, received) if counted.group(1) == "Tx" else (sent, received + more)
    return found


def link_rates(old: Counters, new: Counters, passed_s: float) -> Dict[int, Dict[str, float]]:
    """Means between two looks; a device whose counters were reset says nothing this time."""
    found: Dict[int, Dict[str, float]] = {}
    for device in set(old) & set(new):
        sent, received = new[device][0] - old[device][0], new[device][1] - old[device][1]
        if sent >= 0 and received >= 0 and passed_s > 0:
            found[device] = {
                "nvlink_sent_bytes_per_s": round(sent / passed_s),
                "nvlink_received_bytes_per_s": round(received / passed_s),
            }
    return found
