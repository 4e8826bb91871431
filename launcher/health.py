"""What `distperf check` finds beyond a run's bare needs, as checks over a node's `survey` (agent/probes.py). Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from launcher import words
from launcher.checks import Check
from launcher.nodeset import fold

MIB = 1 << 20
SPOOL_BYTES = 64 * MIB  # rank output of one attempt waits in the temporary folder
SHM_BYTES = 512 * MIB  # NCCL's and data loaders' shared memory; a container's default is 64 MiB
OPEN_FILES = 1024  # sockets and files of one rank among many
SKEW_WARN_S = 1.0
SKEW_FAIL_S = 60.0  # certificates, Kerberos and shared file systems begin to refuse
HOT_C = 90
TEMP = "temp"


@dataclass(frozen=True)
class Folder:
    """A folder that the run writes to."""

    what: str  # checkpoint, workdir, ...
    path: str
    least_bytes: int = 0  # without these it cannot begin
    wanted_bytes: int = 0  # for the whole run
    needed: bool = True  # the run itself writes there


@dataclass(frozen=True)
class Place:
    """A node's part in the run."""

    num_slots: int | None  # as the hostfile has it
    num_devices: int
    most_devices: int  # that any node has
    alone: bool = False  # the run has no other node


def node(survey: Mapping[str, Any], folders: list[Folder], place: Place) -> list[Check]:
    """All checks over one node's survey."""
    temp = Folder(TEMP, survey["temp"], SPOOL_BYTES, SPOOL_BYTES)
    return [
        *(disk(folder, survey["folders"][folder.path]) for folder in [*folders, temp]),
        shared_memory(survey["shm"], place.num_devices),
        open_files(survey["open_files"]),
        locked_memory(survey["locked_bytes"], survey["rdma"]),
        hostname(survey["hostname"], survey["names"], place.alone),
        *devices(survey["devices"], place),
        leftovers(survey["processes"], survey["spools"]),
    ]


# Disks and limits.


def disk(folder: Folder, space: Mapping[str, Any]) -> Check:
    """Can be written, and has room for what the run puts there."""
    name, free = f"disk_{folder.what}", space["free_bytes"]
    elsewhere = (
        "set TMPDIR for logins on that node" if folder.what == TEMP else f"name another {folder.what} folder"
    )
    if space["error"]:
        found = f"cannot write to {space['at']}: {space['error']}"
        return Check(
            name,
            not folder.needed,
            found,
            "a folder that can be written",
            f"let this user write there, free space, or {elsewhere}",
        )
    found = f"{words.size(free)} free of {words.size(space['total_bytes'])} at {space['at']}"
    wanted = (
        f"{words.size(folder.wanted_bytes)} free" if folder.wanted_bytes else "a folder that can be written"
    )
    short = free < folder.wanted_bytes
    return Check(
        name,
        free >= folder.least_bytes,
        found,
        wanted,
        f"free space there, or {elsewhere}" if short else None,
    )


def shared_memory(space: Mapping[str, Any], num_devices: int) -> Check:
    """/dev/shm: ranks of one node exchange through it; with several devices too little of it ends a run."""
    found, wanted = f"{words.size(space['free_bytes'])} free at /dev/shm", f"{words.size(SHM_BYTES)} free"
    if space["error"]:
        found = f"cannot write to /dev/shm: {space['error']}"
    if not space["error"] and space["free_bytes"] >= SHM_BYTES:
        return Check("shared_memory", True, found, wanted)
    remedy = "remove stale files from /dev/shm; give a container --shm-size=8g or --ipc=host"
    return Check("shared_memory", num_devices < 2, found, wanted, remedy)


def open_files(limit: int | None) -> Check:
    """How many files and sockets a process may have open."""
    ok = limit is None or limit >= OPEN_FILES
    remedy = "raise nofile in /etc/security/limits.conf (or the service's LimitNOFILE) on that node"
    found = "unlimited" if limit is None else f"{limit:,}"
    return Check("open_files", ok, found, f"{OPEN_FILES:,} or more", None if ok else remedy)


def locked_memory(limit_bytes: int | None, rdma: bool) -> Check:
    """Memory that may be locked: InfiniBand and RoCE register what they send, and need no limit on it."""
    found = "unlimited" if limit_bytes is None else words.size(limit_bytes)
    if not rdma:
        return Check("locked_memory", True, found)
    ok = limit_bytes is None
    remedy = "set memlock unlimited in /etc/security/limits.conf on that node: it has RDMA devices"
    return Check("locked_memory", ok, found, "unlimited", None if ok else remedy)


def hostname(name: str, addresses: list[str], alone: bool) -> Check:
    """The node's own name leads to an address that others can use. distperf passes addresses; scripts may not."""
    loopback = all(address.startswith("127.") or address == "::1" for address in addresses)
    found = f"{name} is {', '.join(addresses)}" if addresses else f"{name} is not known to the node itself"
    if alone or not loopback:
        return Check("hostname", True, found)
    remedy = (
        f"map {name} to the node's own address in its /etc/hosts: a script that goes by host names is misled"
    )
    return Check("hostname", True, found, "an address that is not loopback", remedy)


# Devices.


def devices(smi: Mapping[str, Any] | None, place: Place) -> list[Check]:
    """Enough of them for the slots, and in good health as far as nvidia-smi tells."""
    checks = [enough_devices(place)]
    if smi is None and not place.num_devices:
        return checks
    if smi is None:
        what = "no nvidia-smi: health is not known"
        return [
            *checks,
            Check("device_health", True, what, None, "put nvidia-smi on the PATH of logins there"),
        ]
    if smi["error"]:
        found, remedy = (
            f"nvidia-smi: {smi['error']}",
            "run nvidia-smi there; after a driver update, reboot the node",
        )
        return [*checks, Check("device_health", not place.num_devices, found, "devices that answer", remedy)]
    return [*checks, device_health(smi["rows"])]


def enough_devices(place: Place) -> Check:
    """A device for each slot on a node that has any, and none without on which the others have some."""
    count, slots = place.num_devices, place.num_slots
    if not count:
        found = "none: ranks run on the CPU"
        wanted = f"{place.most_devices}, as other nodes have" if place.most_devices else None
        remedy = (
            "look for its devices (nvidia-smi there), or leave the node out with --exclude"
            if wanted
            else None
        )
        return Check("devices", wanted is None, found, wanted, remedy)
    wanted = None if slots is None else words.plural(slots, "device")
    short = slots is not None and count < slots
    remedy = (
        "give the host fewer slots, or look for its missing devices (nvidia-smi there)" if short else None
    )
    return Check("devices", not short, words.plural(count, "device"), wanted, remedy)


def device_health(rows: list[list[str]]) -> Check:
    """rows: index, name, memory MiB, used MiB, temperature C, uncorrected ECC errors, driver; all as text."""
    broken = [row[0] for row in rows if _number(row[5]) > 0]
    hot = [row[0] for row in rows if _number(row[4]) >= HOT_C]
    kinds = sorted({f"{row[1]}, {row[2]} MiB, driver {row[6]}" for row in rows})
    found, wanted = "; ".join(kinds), f"no uncorrected ECC errors, below {HOT_C} C"
    if broken:
        what = f"device {', '.join(broken)}: uncorrected ECC errors ({found})"
        return Check("device_health", False, what, wanted, "reset or replace them (nvidia-smi -q -d ECC)")
    if hot:
        what = f"device {', '.join(hot)}: {HOT_C} C or more ({found})"
        return Check(
            "device_health", True, what, wanted, "look at the node's cooling: hot devices slow all ranks"
        )
    return Check("device_health", True, found, wanted)


def _number(text: str) -> float:
    """0 for what a device does not tell ([N/A])."""
    try:
        return float(text)
    except ValueError:
        return 0.0


# What is left of earlier runs.


def leftovers(processes: list[Mapping[str, Any]], spools: list[str]) -> Check:
    """Processes hold devices, memory and ports: a fault. Folders only take room."""
    found, remedies = [], []
    if processes:
        runs = sorted({str(process["token"]).rsplit("-", 2)[0] for process in processes})
        pids = " ".join(str(process["pid"]) for process in processes)
        found.append(f"processes of {', '.join(runs)}: pid {pids}")
        remedies.append(f"kill -9 {pids}")
    if spools:
        found.append(f"folders of ended runs: {', '.join(spools)}")
        remedies.append(f"rm -r {' '.join(spools)}")
    remedy = f"on that node: {'; '.join(remedies)}" if remedies else None
    return Check("leftovers", not processes, "; ".join(found) or "none", "nothing of an earlier run", remedy)


# Between nodes.


def clock(asked: float, answered: float, there: float) -> Check:
    """The node read its clock between asking and answer; what it differs by at least is what lies outside of that."""
    skew = there - answered if there > answered else min(0.0, there - asked)
    found = f"{words.seconds(abs(skew))} {'ahead' if skew > 0 else 'behind'}" if skew else "as here"
    remedy = (
        "let the node follow a time server (timedatectl set-ntp true)" if abs(skew) > SKEW_WARN_S else None
    )
    return Check("clock", abs(skew) <= SKEW_FAIL_S, found, f"within {SKEW_FAIL_S:g} s", remedy)


def network(reached: Mapping[str, Mapping[str, str | None]], where: Mapping[str, str]) -> dict[str, Check]:
    """Every node has connected to every other. reached: from -> to -> why not; where: host -> address."""
    wanted = "connections to all nodes, on any port"
    checks = {}
    for host, others in reached.items():
        groups: dict[str, list[str]] = {}
        for other, why in others.items():
            if why is not None:
                groups.setdefault(why, []).append(other)
        parts = [f"cannot reach {_with_address(names, where)} ({why})" for why, names in groups.items()]
        remedy = "let the nodes connect to each other on all TCP ports (firewall, security group, VLAN)"
        checks[host] = (
            Check("network", False, "; ".join(parts), wanted, remedy)
            if parts
            else Check("network", True, f"reaches {words.plural(len(others), 'other node')}", wanted)
        )
    return checks


def _with_address(names: list[str], where: Mapping[str, str]) -> str:
    return f"{names[0]} at {where[names[0]]}" if len(names) == 1 else fold(names)
