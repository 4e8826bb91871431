"""Before the first rank starts: what each node can do, which address the others reach it by, and whether this run
can work there. Questions go to all nodes at once; deciding is in pure functions over the answers.
"""

from __future__ import annotations

import secrets
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from distperf.version import __version__
from launcher.errors import PreflightError
from launcher.hostfile import Host
from launcher.nodes import Nodes
from launcher.nodeset import fold
from launcher.plan import NodeFacts, label

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class Needs:
    """What a run needs of its nodes."""

    python: str | None  # the recipe's launch.python; None: find one
    workdir: str
    training: bool  # the bundled runtime: torch and distperf itself must be installed
    shared_dir: str | None  # must be one folder on all nodes


def prepare(nodes: Nodes, hosts: tuple[Host, ...], needs: Needs) -> dict[str, NodeFacts]:
    """Check every node and learn how to start ranks on it. Raises PreflightError (all nodes' faults in one)."""
    addresses = _addresses(nodes, hosts)
    pythons = _check_pythons(nodes, hosts, needs)
    if needs.shared_dir is not None and len(hosts) > 1:
        _check_shared(nodes, [label(host) for host in hosts], needs.shared_dir)
    return {
        host: NodeFacts(pythons[host], address, interface_of(nodes.facts[host]["interfaces"], address))
        for host, address in addresses.items()
    }


# Addresses.


def _addresses(nodes: Nodes, hosts: tuple[Host, ...]) -> dict[str, str]:
    """Where the ranks of each node listen: loopback while nobody else must reach them, else the address that the
    SSH connection came in by, else the one on the way to another node.
    """
    if len(hosts) == 1:
        return {label(hosts[0]): LOOPBACK}
    told = {label(host): nodes.facts[label(host)]["ssh_address"] for host in hosts}
    unsure = [host for host, address in told.items() if not usable(address)]
    if unsure:
        peers = {host: next(told[o] or o for o in told if o != host) for host in unsure}
        told.update(nodes.ask({h: ("source_address", {"peer": peer}) for h, peer in peers.items()}))
    bad = [host for host, address in told.items() if not usable(address)]
    if bad:
        raise PreflightError(
            f"{fold(bad)}: found no address that the other nodes could reach (it was reached over the loopback "
            "interface, and has no route to the others); name it in the hostfile by its network name or address"
        )
    return {host: str(address) for host, address in told.items()}


def usable(address: str | None) -> bool:
    """An address that another node could reach: there is one, and it is not loopback."""
    return bool(address) and not str(address).startswith("127.") and address != "::1"


def interface_of(interfaces: Mapping[str, Iterable[str]], address: str) -> str | None:
    """The interface that holds the address; None when none does (an address translated on the way)."""
    return next((name for name, held in interfaces.items() if address in held), None)


# Interpreters.


def _check_pythons(nodes: Nodes, hosts: tuple[Host, ...], needs: Needs) -> dict[str, str]:
    modules = ["torch", "distperf"] if needs.training else []
    questions = {
        label(host): (
            "python",
            {
                "candidates": candidates(host, needs.python),
                "workdir": host.workdir or needs.workdir,
                "modules": modules,
            },
        )
        for host in hosts
    }
    answers = nodes.ask(questions)
    faults: dict[str, list[str]] = {}
    for host in hosts:
        fault = python_fault(host, needs, answers[label(host)])
        if fault:
            faults.setdefault(fault, []).append(label(host))
    if faults:
        raise PreflightError("\n".join(f"{fold(names)}: {fault}" for fault, names in faults.items()))
    return {host: str(answer["python"]) for host, answer in answers.items()}


def candidates(host: Host, wanted: str | None) -> list[str]:
    """Interpreters to look for on a host, best first: the hostfile's, the recipe's, this one's path, python3."""
    if host.python or wanted:
        return [host.python or str(wanted)]
    return [sys.executable, "python3"]


def python_fault(host: Host, needs: Needs, answer: Mapping[str, Any]) -> str | None:
    """What is wrong with a node's answer, and what to do; None when ranks can start there."""
    if not answer["workdir"]:
        workdir = host.workdir or needs.workdir
        return f"no folder {workdir} there: make it, share it, or name another with launch.workdir"
    if answer["python"] is None:
        tried = " nor ".join(candidates(host, needs.python))
        return f"cannot run {tried} there: name an interpreter with python= in the hostfile or launch.python"
    if not needs.training:
        return None
    versions = answer["versions"]
    missing = [name for name in ("distperf", "torch") if not versions.get(name)]
    if missing:
        return f"{answer['python']} has no {' and no '.join(missing)}: install distperf[train] into it"
    if versions["distperf"] != __version__:
        found = versions["distperf"]
        return f"{answer['python']} has distperf {found}, this is {__version__}: install the same version on both"
    return None


# One folder seen by all.


def _check_shared(nodes: Nodes, hosts: list[str], folder: str) -> None:
    """Prove it: the first node writes, the others read. Raises PreflightError naming those that do not see it."""
    name, text = f".distperf-{secrets.token_hex(8)}", secrets.token_hex(16)
    mark = {"folder": folder, "name": name}
    nodes.ask({hosts[0]: ("write_mark", {**mark, "text": text})})
    try:
        seen = nodes.ask({host: ("read_mark", mark) for host in hosts[1:]})
    finally:
        nodes.ask({hosts[0]: ("remove_mark", mark)})
    blind = [host for host, found in seen.items() if found != text]
    if blind:
        raise PreflightError(
            f"checkpoint.dir {folder} is not one folder on all nodes: what {hosts[0]} writes there, {fold(blind)} "
            "cannot see. Name a folder on a shared file system with checkpoint.dir, or write no checkpoints "
            "(checkpoint: {every_steps: 0, save_last: false})"
        )
