"""Before the first rank starts: which interpreter, which address, and whether the run can work there at all.

Questions go to all nodes at once; what the answers mean is decided in launcher.checks. `launch` stops at the first
sign of trouble, with all nodes' faults in one error; `check` goes on with the nodes that are left.
"""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass
from typing import Any

from launcher import checks
from launcher.checks import Check, Needs
from launcher.errors import ConnectFailed, PreflightError, SetupFailed, TransportError
from launcher.hostfile import Host
from launcher.nodes import Nodes, Unanswered, together
from launcher.plan import NodeFacts, label
from launcher.setup import ANSWER_S, UNCHANGED, Changes, changes

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class Prepared:
    """What was found, by host label."""

    checks: dict[str, list[Check]]
    facts: dict[str, NodeFacts]  # of the hosts that ranks can start on
    lost: dict[str, str]  # hosts that went away meanwhile, and why


def prepare(nodes: Nodes, hosts: tuple[Host, ...], needs: Needs) -> dict[str, NodeFacts]:
    """Learn how to start ranks on every node. Raises ConnectFailed; PreflightError with all nodes' faults."""
    found = quick(nodes, hosts, needs, alone=len(hosts) == 1)
    failures: list[TransportError] = [ConnectFailed(host, why) for host, why in found.lost.items()]
    failures += [
        SetupFailed(host, f"{check.found}\n  {check.remedy}")
        for host, checked in found.checks.items()
        for check in checked
        if check.name == "setup" and not check.ok
    ]
    if failures:
        raise together(failures)
    faults = checks.failing(found.checks)
    if faults:
        raise PreflightError("\n".join(faults))
    return found.facts


def quick(nodes: Nodes, hosts: tuple[Host, ...], needs: Needs, alone: bool) -> Prepared:
    """The checks that `launch` does too. alone: the run has one node, whose ranks nobody else must reach."""
    return _Quick(nodes, hosts, needs).run(alone)


class _Quick:
    """Asks one thing after the other, of the hosts that still answer."""

    def __init__(self, nodes: Nodes, hosts: tuple[Host, ...], needs: Needs) -> None:
        self._nodes = nodes
        self._hosts = {label(host): host for host in hosts}
        self._needs = needs
        self._checks: dict[str, list[Check]] = {host: [] for host in self._hosts}
        self._lost: dict[str, str] = {}

    def run(self, alone: bool) -> Prepared:
        changes = self._setup() if self._needs.setup.lines else {}
        pythons = self._pythons(changes)
        addresses = self._addresses(alone)
        if self._needs.shared_dir is not None:
            self._shared(self._needs.shared_dir)
        for drive in self._needs.drives:
            self._own_folder(checks.OFFLOAD, drive)
        if self._needs.memory_dir is not None:
            self._own_folder(checks.MEMORY, self._needs.memory_dir)
        facts = {
            host: NodeFacts(
                pythons[host],
                addresses[host],
                checks.interface_of(self._interfaces(host), addresses[host]),
                changes.get(host, UNCHANGED),
            )
            for host in self._alive()
            if host in pythons and host in addresses
        }
        return Prepared(self._checks, facts, self._lost)

    def _alive(self) -> list[str]:
        return [host for host in self._hosts if host not in self._lost]

    def _interfaces(self, host: str) -> dict[str, list[str]]:
        interfaces: dict[str, list[str]] = self._nodes.facts[host]["interfaces"]
        return interfaces

    def _ask(
        self, questions: dict[str, tuple[str, dict[str, Any]]], name: str, limit_s: float = 70.0
    ) -> dict[str, Any]:
        """The answers there are; a refusal becomes a failed check `name`, a lost host is noted."""
        answers = self._nodes.gather(questions, limit_s)
        for host, answer in list(answers.items()):
            if isinstance(answer, Unanswered):
                del answers[host]
                if answer.lost:
                    self._lost[host] = answer.why
                else:
                    self._checks[host].append(Check(name, False, answer.why, None, "mend that on the node"))
        return answers

    def _setup(self) -> dict[str, Changes]:
        """What launch.setup did on the nodes where it went well; the others are not looked at any further."""
        token = f"setup-{secrets.token_hex(8)}"
        questions = {
            name: (
                "setup",
                self._needs.setup.question(host.workdir or self._needs.workdir, f"{token}-{number}"),
            )
            for number, (name, host) in enumerate(self._hosts.items())
        }
        answers = self._ask(questions, "setup", ANSWER_S)
        for name, answer in answers.items():
            self._checks[name].append(checks.setup(self._needs, answer))
        return {name: changes(answer) for name, answer in answers.items() if self._checks[name][-1].ok}

    def _pythons(self, after: dict[str, Changes]) -> dict[str, str]:
        needs = self._needs
        hosts = {name: host for name, host in self._hosts.items() if name in after or not needs.setup.lines}
        activated = {name: found.python for name, found in after.items()}
        questions = {}
        for name, host in hosts.items():
            args = {
                "candidates": checks.candidates(host, needs.python, activated.get(name)),
                "workdir": host.workdir or needs.workdir,
                "modules": list(needs.modules),
                "setup": after.get(name, UNCHANGED).wire(),
            }
            questions[name] = ("python", args)
        answers = self._ask(questions, "python")
        for name, answer in answers.items():
            self._checks[name] += checks.interpreter(hosts[name], needs, answer, activated.get(name))
        for name, found in checks.versions(needs, answers).items():
            self._checks[name] += found
        return {
            name: str(answer["python"]) for name, answer in answers.items() if answer["python"] is not None
        }

    def _addresses(self, alone: bool) -> dict[str, str]:
        """Where the ranks of each node listen: loopback while nobody else must reach them, else the address that the
        SSH connection came in by, else the one on the way to another node.
        """
        alive = self._alive()
        told: dict[str, str | None] = dict.fromkeys(alive, LOOPBACK)
        if not alone:
            told = {host: self._nodes.facts[host]["ssh_address"] for host in alive}
            unsure = [host for host in alive if not checks.usable(told[host])]
            peers = {host: next((told[o] or o for o in alive if o != host), None) for host in unsure}
            questions = {
                h: ("source_address", {"peer": peer}) for h, peer in peers.items() if peer is not None
            }
            told.update(self._ask(questions, "address"))
        for host in self._alive():
            self._checks[host].append(checks.address(told[host], self._interfaces(host), alone))
        return {host: str(found) for host, found in told.items() if alone or checks.usable(found)}

    def _own_folder(self, key: str, path: str) -> None:
        """See that every node has the folder that the recipe's `key` names."""
        folders = {
            name: os.path.normpath(os.path.join(host.workdir or self._needs.workdir, path))
            for name, host in self._hosts.items()
            if name not in self._lost
        }
        questions = {name: ("space", {"folder": folder}) for name, folder in folders.items()}
        for name, answer in self._ask(questions, key.replace(".", "_")).items():
            self._checks[name].append(checks.own_folder(key, folders[name], answer))

    def _shared(self, folder: str) -> None:
        """Prove that all nodes see one folder: the first node writes, the others read."""
        if not (alive := self._alive()):
            return
        writer, text = alive[0], secrets.token_hex(16)
        mark = {"folder": folder, "name": f".distperf-{secrets.token_hex(8)}"}
        made = self._nodes.gather({writer: ("write_mark", {**mark, "text": text})})[writer]
        if isinstance(made, Unanswered) and made.lost:
            self._lost[writer] = made.why
            return
        refused = made.why.replace("write_mark: ", "") if isinstance(made, Unanswered) else None
        seen: dict[str, Any] = {}
        if refused is None:
            try:
                seen = self._ask({host: ("read_mark", mark) for host in alive[1:]}, "checkpoint_dir")
            finally:
                self._nodes.gather({writer: ("remove_mark", {**mark, "made": made})})
        for host, check in checks.shared_folder(folder, writer, refused, text, seen).items():
            self._checks[host].append(check)
