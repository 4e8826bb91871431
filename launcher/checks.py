"""What a run needs of its nodes, as checks over their answers. Pure; `launch` refuses by these, `check` shows them.

A check that is ok and has a remedy is a warning: the run works, but better without.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from distperf.version import __version__
from launcher import setup as shell
from launcher import words
from launcher.hostfile import Host
from launcher.nodeset import fold
from launcher.setup import NO_SETUP, Setup

MODULES = ("distperf", "torch")


@dataclass(frozen=True)
class Check:
    """One finding about one node."""

    name: str
    ok: bool
    found: str
    wanted: str | None = None
    remedy: str | None = None


@dataclass(frozen=True)
class Needs:
    """What a run needs of its nodes."""

    python: str | None  # the recipe's launch.python; None: find one
    workdir: str
    training: bool  # the bundled runtime: torch and distperf itself must be installed
    modules: tuple[str, ...]  # whose versions are asked for
    shared_dir: str | None  # must be one folder on all nodes
    setup: Setup = NO_SETUP
    drives: tuple[str, ...] = ()  # folders that ranks put offloaded state in, on every node
    memory_dir: str | None = None  # a folder in memory, on every node


def failing(checks: Mapping[str, Iterable[Check]]) -> list[str]:
    """One line for each different fault: hosts folded, what was found, what to do."""
    faults: dict[str, list[str]] = {}
    for host, found in checks.items():
        for check in found:
            if not check.ok:
                faults.setdefault(f"{check.found}: {check.remedy}", []).append(host)
    return [f"{fold(hosts)}: {fault}" for fault, hosts in faults.items()]


# Shell lines before everything else.


def setup(needs: Needs, answer: Mapping[str, Any]) -> Check:
    """Check `setup`: the lines of launch.setup on a node."""
    lines, why = words.plural(len(needs.setup.lines), "line"), shell.problem(needs.setup, answer)
    if why is None:
        return Check("setup", True, f"{lines} in {answer['seconds']:.1f} s")
    return Check("setup", False, why, "every line ends with code 0", shell.remedy(answer["status"]))


# Interpreters.


def candidates(host: Host, wanted: str | None, activated: str | None = None) -> list[str]:
    """Interpreters to look for on a host, best first: the hostfile's, the recipe's, the one that launch.setup has
    activated there, this one's path, python3.
    """
    if chosen := host.python or wanted or activated:
        return [chosen]
    return [sys.executable, "python3"]


def interpreter(host: Host, needs: Needs, answer: Mapping[str, Any], activated: str | None) -> list[Check]:
    """The folder that ranks start in and what runs them: checks `workdir` and `python`."""
    folder = host.workdir or needs.workdir
    if not answer["workdir"]:
        remedy = "make it, share it, or name another with launch.workdir"
        return [Check("workdir", False, f"no folder {folder} there", folder, remedy)]
    tried = candidates(host, needs.python, activated)
    found, version = answer["python"], answer["versions"].get("python")
    if found is None:
        remedy = "name an interpreter with python= in the hostfile or launch.python"
        python = Check("python", False, f"cannot run {' nor '.join(tried)} there", " or ".join(tried), remedy)
    else:
        python = Check("python", True, f"{found} ({version})" if version else found, " or ".join(tried))
    return [Check("workdir", True, folder), python]


def versions(needs: Needs, answers: Mapping[str, Mapping[str, Any]]) -> dict[str, list[Check]]:
    """Checks `python_version`, `distperf` and `torch` of every host with an interpreter: there, and the same.

    A script brings its own: there a module may be missing, but not on some nodes only.
    """
    running = {host: answer for host, answer in answers.items() if answer["python"] is not None}
    checks: dict[str, list[Check]] = {host: [] for host in running}
    if needs.modules:
        pythons = {host: str(answer["versions"].get("python")) for host, answer in running.items()}
        wanted = _usual(minor(version) for version in pythons.values())
        for host, version in pythons.items():
            remedy = None if minor(version) == wanted else "run the same Python on all nodes"
            checks[host].append(Check("python_version", True, version, wanted, remedy))
    for module in needs.modules:
        found = {host: answer["versions"].get(module) for host, answer in running.items()}
        wanted = __version__ if module == "distperf" else _usual(found.values())
        for host, version in found.items():
            checks[host].append(
                _version(module, version, wanted, str(running[host]["python"]), needs.training)
            )
    return checks


def minor(version: str) -> str:
    """`3.11` of `3.11.2`."""
    return ".".join(version.split(".")[:2])


def _usual(versions: Iterable[str | None]) -> str | None:
    """The version that most nodes have, the newest of equally many; None where nobody has any."""
    counts = Counter(version for version in versions if version is not None)
    return max(counts, key=lambda version: (counts[version], version), default=None)


def _version(module: str, found: str | None, wanted: str | None, python: str, training: bool) -> Check:
    own = module == "distperf"  # compared with this one; torch is compared among the nodes
    if found is None:
        ok = not training and (own or wanted is None)
        return Check(
            module, ok, f"{python} has no {module}", wanted, f"install distperf[train]=={__version__} into it"
        )
    if found == wanted:
        return Check(module, True, found, wanted)
    here = f"this is {wanted}" if own else f"most nodes have {wanted}"
    remedy = "install the same version there and here" if own else "install the same version on all nodes"
    return Check(module, own and not training, f"{python} has {module} {found}, {here}", wanted, remedy)


# Addresses.


def usable(address: str | None) -> bool:
    """An address that another node could reach: there is one, and it is not loopback."""
    return bool(address) and not str(address).startswith("127.") and address != "::1"


def interface_of(interfaces: Mapping[str, Iterable[str]], address: str) -> str | None:
    """The interface that holds the address; None when none does (an address translated on the way)."""
    return next((name for name, held in interfaces.items() if address in held), None)


def address(found: str | None, interfaces: Mapping[str, Iterable[str]], alone: bool) -> Check:
    """Where ranks of this node listen. With other nodes it must be an address that those can reach."""
    if alone or usable(found):
        name = interface_of(interfaces, str(found))
        return Check("address", True, f"{found} on {name}" if name else f"{found} (translated on the way)")
    return Check(
        "address",
        False,
        "found no address that the other nodes could reach (it was reached over the loopback interface, and has no "
        "route to the others)",
        "an address that is not loopback",
        "name it in the hostfile by its network name or address",
    )


# Folders on every node, and one seen by all.

OFFLOAD, MEMORY = "offload.path", "checkpoint.memory.dir"


def own_folder(key: str, folder: str, space: Mapping[str, Any]) -> Check:
    """Checks `offload_path` and `checkpoint_memory_dir`: a folder on each node. Room is seen when ranks take it."""
    name, remedy = key.replace(".", "_"), f"make it there, mount the drive, or name another folder with {key}"
    if space["at"] != folder:
        return Check(name, False, f"{key} {folder} is no folder there", "a folder", remedy)
    if space["error"]:
        found = f"cannot write to {key} {folder}: {space['error']}"
        return Check(name, False, found, "a folder that can be written", "let this user write there")
    return Check(name, True, f"{folder}, {words.size(space['free_bytes'])} free")


def shared_folder(
    folder: str, writer: str, written: str | None, text: str, seen: Mapping[str, str | None]
) -> dict[str, Check]:
    """Check `checkpoint_dir`: `written` is why the writer could not (None: it could), `seen` what the others read."""
    name = "checkpoint_dir"
    remedy = (
        "name a folder on a shared file system with checkpoint.dir, or write no checkpoints "
        "(checkpoint: {every_steps: 0, save_last: false})"
    )
    if written is not None:
        found = f"cannot write to checkpoint.dir {folder}: {written}"
        return {writer: Check(name, False, found, "a folder that can be written", remedy)}
    checks = {writer: Check(name, True, folder)}
    for host, mark in seen.items():
        found = (
            f"checkpoint.dir {folder} is not one folder on all nodes: what {writer} writes there is not seen"
        )
        wanted = "one folder on all nodes"
        checks[host] = (
            Check(name, True, folder) if mark == text else Check(name, False, found, wanted, remedy)
        )
    return checks
