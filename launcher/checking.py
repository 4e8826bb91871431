"""`distperf check`: every node at once, every question that can be asked before a run. Refuses nothing; tells all.

A host that cannot be reached is a row like the others, and the rest is checked without it.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from distperf import contract
from distperf.recipe.estimate import known_parameters
from distperf.recipe.runspec import RunSpec
from launcher import health, prepare
from launcher.checks import MODULES, Check, Needs
from launcher.errors import (
    AuthFailed,
    BootstrapFailed,
    ConnectFailed,
    HostKeyRejected,
    ProtocolError,
    SyncFailed,
    TransportError,
)
from launcher.health import Folder, Place
from launcher.hostfile import Host
from launcher.launch import carrier_of, make_transport, needs
from launcher.nodes import Nodes, Unanswered
from launcher.plan import NodeFacts, label
from launcher.planning import Parsed, checkpoint_folder, plan, slots_known, with_folders, with_probed_slots
from launcher.rehearsal import rehearse

STATE_BYTES = 12  # of a checkpoint for each parameter: fp32 weight and Adam's two moments
DIAL_LIMIT_S = 5.0
REMEDIES: dict[type[TransportError], str] = {
    ConnectFailed: "see that it is on and that `ssh HOST true` works; name its address in ~/.ssh/config",
    AuthFailed: "make `ssh HOST true` work without a question: a key in ssh-agent or IdentityFile, the right user",
    HostKeyRejected: "verify the host's key with its owner, then correct known_hosts: ssh-keygen -R, ssh HOST",
    BootstrapFailed: "see that `ssh HOST python3 --version` (or python= of the hostfile) tells 3.8 or later",
    SyncFailed: "see that ~/.cache there (or XDG_CACHE_HOME) can be written and has room",
    ProtocolError: "see that nothing answers in the host's place, and that its profile prints no binary data",
}


@dataclass(frozen=True)
class HostReport:
    """What was found about one host, in the order in which it was asked."""

    host: str
    checks: tuple[Check, ...]

    @property
    def ok(self) -> bool:
        """No check failed."""
        return all(check.ok for check in self.checks)

    @property
    def reached(self) -> bool:
        """The host could be reached and prepared, and stayed."""
        return all(check.ok for check in self.checks if check.name in ("reach", "setup"))


@dataclass(frozen=True)
class Report:
    """All hosts, in hostfile order."""

    hosts: tuple[HostReport, ...]

    @property
    def exit_code(self) -> int:
        """0, or 3 where a host was not reached or prepared, or 4 where something else is wrong."""
        if not all(host.reached for host in self.hosts):
            return contract.EXIT_UNREACHABLE
        return contract.EXIT_OK if all(host.ok for host in self.hosts) else contract.EXIT_PREFLIGHT


def check(parsed: Parsed) -> Report:
    """Ask everything. Raises RecipeError, UsageError and PlacementError for what no host is to blame for."""
    spec = plan(parsed).spec if slots_known(parsed) else None
    nodes = Nodes(make_transport(parsed), carrier_of(parsed))
    try:
        return _Checking(nodes, parsed, spec).run()
    finally:
        nodes.close()


class _Checking:
    def __init__(self, nodes: Nodes, parsed: Parsed, spec: RunSpec | None) -> None:
        self._nodes = nodes
        self._parsed = parsed
        self._spec = spec
        self._needs = _all_needs(parsed)
        self._checks: dict[str, list[Check]] = {label(host): [] for host in parsed.hosts}
        self._lost: set[str] = set()
        self._alone = len(parsed.hosts) == 1

    def run(self) -> Report:
        self._reach()
        prepared = prepare.quick(self._nodes, self._alive(), self._needs, self._alone)
        for host, found in prepared.checks.items():
            self._checks[host] += found
        for host, why in prepared.lost.items():
            self._lose(host, why)
        self._survey()
        self._clocks()
        if len(self._alive()) > 1:
            self._meet(prepared.facts)
        return Report(tuple(HostReport(host, tuple(found)) for host, found in self._checks.items()))

    def _alive(self) -> tuple[Host, ...]:
        return tuple(host for host in self._parsed.hosts if label(host) not in self._lost)

    def _lose(self, host: str, why: str, kind: type[TransportError] = ConnectFailed) -> None:
        self._lost.add(host)
        remedy = REMEDIES.get(kind, REMEDIES[ConnectFailed]).replace("HOST", host)
        reach = Check("reach", False, why, "an agent on the host", remedy)
        self._checks[host] = [reach, *(c for c in self._checks[host] if c.name != "reach")]

    def _reach(self) -> None:
        for host, error in self._nodes.open_each(self._parsed.hosts).items():
            self._lose(host, error.reason, type(error))
        self._parsed = with_folders(self._parsed, self._nodes.folders)
        for host in map(label, self._alive()):
            facts = self._nodes.facts[host]
            found = f"{facts['hostname']} as {facts['user']}, agent under python {facts['python']}"
            self._checks[host].append(Check("reach", True, found))
        if not slots_known(self._parsed) and not self._lost:
            self._parsed = with_probed_slots(self._parsed, self._nodes.facts)
            self._spec = plan(self._parsed).spec

    def _ask(
        self, hosts: Iterable[str], question: str, args: Callable[[str], dict[str, Any]], name: str
    ) -> dict[str, Any]:
        """Answers of those that have one; for the others a failed check `name`, or the end of them."""
        answers = self._nodes.gather({host: (question, args(host)) for host in hosts})
        for host, answer in list(answers.items()):
            if isinstance(answer, Unanswered):
                del answers[host]
                if answer.lost:
                    self._lose(host, answer.why)
                else:
                    self._checks[host].append(Check(name, False, answer.why, None, "mend that on the node"))
        return answers

    def _survey(self) -> None:
        folders = {
            label(host): _folders(self._parsed, host, self._needs, self._spec) for host in self._alive()
        }
        paths = {host: [folder.path for folder in found] for host, found in folders.items()}
        surveys = self._ask(paths, "survey", lambda host: {"folders": paths[host]}, "survey")
        counts = {host: int(self._nodes.facts[host]["devices"]) for host in surveys}
        for host in self._alive():
            name = label(host)
            if name in surveys:
                place = Place(
                    len(host.slots) if host.slots else None, counts[name], max(counts.values()), self._alone
                )
                self._checks[name] += health.node(surveys[name], folders[name], place)

    def _clocks(self) -> None:
        asked = time.time()
        answers = self._ask(map(label, self._alive()), "clock", lambda host: {}, "clock")
        answered = time.time()
        for host, there in answers.items():
            self._checks[host].append(health.clock(asked, answered, there))

    def _meet(self, facts: dict[str, NodeFacts]) -> None:
        """All nodes connect to all others: first by bare TCP, which names the pair; then as ranks do."""
        hosts = [host for host in self._alive() if label(host) in facts]
        where = {label(host): facts[label(host)].address for host in hosts}
        reached = self._dial(where)
        for host, check in health.network(reached, where).items():
            self._checks[host].append(check)
        fit = tuple(host for host in hosts if self._fit_for_ranks(label(host)))
        if len(fit) > 1:
            for host, check in rehearse(self._nodes, fit, facts, self._parsed).items():
                self._checks[host].append(check)

    def _fit_for_ranks(self, host: str) -> bool:
        """What a rank of the bundled runtime needs is there; a script's nodes may have no torch."""
        return all(c.ok and c.remedy is None for c in self._checks[host] if c.name in _FOR_RANKS)

    def _dial(self, where: dict[str, str]) -> dict[str, dict[str, str | None]]:
        """[from][to]: why it could not connect, or None; tried on a port such as rank 0's and one the kernel picks."""
        picked = self._ask(where, "pick_port", lambda host: {"address": where[host]}, "network")
        ports = self._ask(
            picked, "listen", lambda host: {"address": where[host], "ports": [picked[host], 0]}, "network"
        )
        targets = {
            host: {other: [where[other], ports[other]] for other in ports if other != host} for host in ports
        }
        answers = self._ask(
            targets, "dial", lambda host: {"targets": targets[host], "limit_s": DIAL_LIMIT_S}, "network"
        )
        self._ask(answers, "unlisten", lambda host: {}, "network")
        return {
            host: {other: next((why for why in whys if why), None) for other, whys in results.items()}
            for host, results in answers.items()
        }


_FOR_RANKS = ("workdir", "python", "torch", "distperf", "address", "network", "disk_temp", "devices")


def _all_needs(parsed: Parsed) -> Needs:
    """A run's needs, and the versions of both modules in any case."""
    found = needs(parsed, check=True)
    return dataclasses.replace(found, modules=MODULES)


def _folders(parsed: Parsed, host: Host, needs: Needs, spec: RunSpec | None) -> list[Folder]:
    """Where a node's ranks write."""
    folders = [Folder("workdir", host.workdir or needs.workdir, needed=False)]
    if needs.shared_dir is not None:
        size = STATE_BYTES * (known_parameters(spec.model) or 0) if spec else 0
        keep = spec.checkpoint.keep if spec else 0
        folders.append(Folder("checkpoint", checkpoint_folder(parsed), size, (keep + 1) * size))
    if parsed.local:
        folders.append(Folder("run", str(parsed.run.path)))
    return folders
