"""What this node is: told once, in the agent's first message. Nothing here waits or writes."""

import fcntl
import glob
import os
import platform
import socket
import struct
import sys
import time
from typing import Any, Dict, List, Mapping, Optional

from launcher.agent.memory import group_of

_SIOCGIFADDR = 0x8915


def node_facts() -> Dict[str, Any]:
    """hostname, pid, python, cpus, devices (number of accelerators), device_names, memory_bytes, and more."""
    return {
        "hostname": socket.gethostname(),
        "pid": os.getpid(),
        "user": os.environ.get("USER") or str(os.getuid()),
        "python": platform.python_version(),
        "executable": sys.executable,
        "cpus": len(os.sched_getaffinity(0)),
        "devices": count_devices(os.environ, os.listdir("/dev")),
        "device_names": device_names(),
        "memory_bytes": memory_bytes(),
        "ssh_address": ssh_address(os.environ.get("SSH_CONNECTION", "")),
        "interfaces": interfaces(),
        "wall_time": time.time(),
    }


def count_devices(environ: Mapping[str, str], dev: List[str]) -> int:
    """Accelerators a rank may use: those of SLURM's task, else NVIDIA's device files within CUDA_VISIBLE_DEVICES."""
    if environ.get("SLURM_GPUS_ON_NODE", "").isdigit():  # an srun's word on its own task
        return int(environ["SLURM_GPUS_ON_NODE"])
    found = sum(name.startswith("nvidia") and name[6:].isdigit() for name in dev)
    mask = environ.get("CUDA_VISIBLE_DEVICES")
    if mask is None or not found:
        return found
    return len([device for device in mask.split(",") if device.strip() not in ("", "-1")])


def device_names(folder: str = "/proc/driver/nvidia/gpus") -> List[str]:
    """What NVIDIA's driver calls each device, where there is one."""
    names = []
    for path in sorted(glob.glob(os.path.join(folder, "*", "information"))):
        with open(path) as file:
            names += [line.partition(":")[2].strip() for line in file if line.startswith("Model:")]
    return names


def memory_bytes() -> int:
    """This node's memory, or less where a cgroup limits what this process and its children may have."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    group = group_of(os.getpid())
    limit = group.limit_bytes() if group is not None else None
    return total if limit is None else min(total, limit)


def ssh_address(connection: str) -> Optional[str]:
    """The address that the SSH client reached this node by (third word of SSH_CONNECTION)."""
    words = connection.split()
    return words[2].split("%")[0] if len(words) == 4 else None


def interfaces() -> Dict[str, List[str]]:
    """Addresses of this node by interface name, IPv4 first."""
    found: Dict[str, List[str]] = {name: [] for _, name in socket.if_nameindex()}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for name, addresses in found.items():
            request = struct.pack("256s", name.encode()[:15])
            try:
                reply = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
            except OSError:  # an interface without an IPv4 address
                continue
            addresses.append(socket.inet_ntoa(reply[20:24]))
    for name, address in _ipv6_addresses():
        found.setdefault(name, []).append(address)
    return found


def _ipv6_addresses() -> List[List[str]]:
    try:
        with open("/proc/net/if_inet6") as file:
            rows = [line.split() for line in file]
    except OSError:  # a kernel without IPv6
        return []
    # Link-local addresses (scope 20) need an interface to be usable and never identify a node.
    return [
        [row[5], socket.inet_ntop(socket.AF_INET6, bytes.fromhex(row[0]))] for row in rows if row[3] != "20"
    ]


def interface_of(address: str) -> Optional[str]:
    """The interface that holds an address."""
    for name, addresses in interfaces().items():
        if address in addresses:
            return name
    return None
