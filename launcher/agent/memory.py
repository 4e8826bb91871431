"""Whether the kernel killed a rank for its memory: its cgroup's counters, or the kernel's log where we may read it.

A counter says so for certain (`oom_kill` of memory.events in cgroup v2, of memory.oom_control in v1). Ranks of a node
mostly share one cgroup: each kill that is counted explains one rank that died of SIGKILL.
"""

import os
import re
from typing import Dict, List, NamedTuple, Optional

CGROUPS = "/sys/fs/cgroup"
KERNEL_LOG = "/dev/kmsg"
FIRST_PID_NAMESPACE = "pid:[4026531836]"  # PROC_PID_INIT_INO of the kernel

_KILL = re.compile(r"(Memory cgroup out|Out) of memory[^\n]*: Killed process (\d+)\b")


class Group(NamedTuple):
    """A memory cgroup: its folder, the root of its hierarchy, and where the kernel keeps limit and kills in it."""

    path: str
    root: str
    limit_file: str
    kills_file: str

    def kills(self) -> int:
        """Processes that the kernel has killed here so far; 0 where it does not say."""
        for line in _read(os.path.join(self.path, self.kills_file)).splitlines():
            name, _, value = line.partition(" ")
            if name == "oom_kill" and value.strip().isdigit():
                return int(value)
        return 0

    def limit_bytes(self) -> Optional[int]:
        """The tightest limit from here up to the root; None where there is none."""
        found: List[int] = []
        path = self.path
        while path.startswith(self.root):
            text = _read(os.path.join(path, self.limit_file)).strip()
            if text.isdigit() and int(text) < 1 << 60:  # v1 writes "none" as a number near 2 ** 63
                found.append(int(text))
            path = os.path.dirname(path)
        return min(found) if found else None


def group_of(pid: int, proc: str = "/proc", cgroups: str = CGROUPS) -> Optional[Group]:
    """The memory cgroup that a process is in; None where no controller is mounted at the usual place."""
    for line in _read("%s/%d/cgroup" % (proc, pid)).splitlines():
        _, _, rest = line.partition(":")
        controllers, _, inner = rest.partition(":")
        if "memory" in controllers.split(","):
            places = [(os.path.join(cgroups, "memory"), "memory.limit_in_bytes", "memory.oom_control")]
        elif not controllers:
            roots = (cgroups, os.path.join(cgroups, "unified"))
            places = [(root, "memory.max", "memory.events") for root in roots]
        else:
            continue
        for root, limit_file, kills_file in places:
            # In a container the path can be the host's, and the container's own group is mounted as the root.
            for path in (root + inner.rstrip("/"), root):
                if os.path.exists(os.path.join(path, kills_file)):
                    return Group(path, root, limit_file, kills_file)
    return None


class MemoryWatch:
    """Of one attempt's ranks: which cgroup each is in, and how many kills were counted there before."""

    def __init__(self) -> None:
        self._groups: Dict[int, Group] = {}
        self._explained: Dict[Group, int] = {}
        self._kernel_log = KernelLog()

    def add(self, pid: int) -> None:
        """A rank has started."""
        group = group_of(pid)
        if group is not None:
            self._groups[pid] = group
            self._explained.setdefault(group, group.kills())

    def verdict(self, pid: int) -> Optional[str]:
        """Why the kernel killed this rank, which died of SIGKILL; None when it says nothing."""
        logged, group = self._kernel_log.killed(pid), self._groups.get(pid)
        counted = group is not None and group.kills() > self._explained[group]
        if group is not None and counted:
            self._explained[group] += 1
        limit = group.limit_bytes() if group is not None else None
        if logged == "host" or (counted and limit is None):
            return "killed by the kernel: this host ran out of memory"
        if counted and limit is not None:
            return "killed by the kernel: memory limit of its cgroup (%d MiB) reached" % (limit >> 20)
        if logged == "cgroup":
            return "killed by the kernel: memory limit of its cgroup reached"
        return None

    def close(self) -> None:
        """Close the kernel's log."""
        self._kernel_log.close()


class KernelLog:
    """What the kernel logs from now on; silent where it is not ours to read."""

    def __init__(self, path: str = KERNEL_LOG) -> None:
        self._kills: Dict[int, str] = {}
        self._fd = -1
        try:
            if os.readlink("/proc/self/ns/pid") != FIRST_PID_NAMESPACE:
                return  # the log's pids are not ours
            self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            os.lseek(self._fd, 0, os.SEEK_END)
        except OSError:
            self.close()

    def killed(self, pid: int) -> Optional[str]:
        """Whether a process was killed for memory, and whose ran out: cgroup | host."""
        self._read_on()
        return self._kills.pop(pid, None)

    def _read_on(self) -> None:
        while self._fd >= 0:
            try:
                record = os.read(self._fd, 8192)
            except BrokenPipeError:  # records were overwritten before they were read: the next one is there
                continue
            except OSError:
                return
            if not record:
                return
            for scope, pid in _KILL.findall(record.decode("utf-8", "replace")):
                self._kills[int(pid)] = "cgroup" if scope.startswith("Memory") else "host"

    def close(self) -> None:
        """Close the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _read(path: str) -> str:
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return ""
