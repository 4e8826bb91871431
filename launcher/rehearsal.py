"""One tiny run before the run: a rank on each node, started as every rank is, that exchanges a little with the others.

What stops it would have stopped the run (launcher.errand).
"""

from __future__ import annotations

import dataclasses

from launcher import errand
from launcher.checks import Check
from launcher.hostfile import Host
from launcher.nodes import Nodes
from launcher.plan import NodeFacts, label, place
from launcher.planning import Parsed

NAME = "all_to_all"
MODULE = "distperf.measure.alltoall"
LIMIT_S = (
    90.0  # torch comes from a cold network disk on all nodes at once; the exchange has a limit of its own
)
REMEDY = "look at the interface and address of each node above; GLOO_/NCCL_SOCKET_IFNAME in launch.env override them"


def rehearse(
    nodes: Nodes, hosts: tuple[Host, ...], facts: dict[str, NodeFacts], parsed: Parsed
) -> dict[str, Check]:
    """Check `all_to_all` for every host. Leaves no process behind: the agents end what does not end itself."""
    placement = place(tuple(map(_one_slot, hosts)), lambda rank: {})
    program = errand.program("check", MODULE, parsed.workdir, parsed.recipe.launch.env)
    why = errand.start(nodes, placement, facts, program)
    if why is not None:
        return {label(hosts[0]): Check(NAME, False, why, None, REMEDY)}
    outcome = errand.watch(nodes, placement, LIMIT_S)
    return {label(node.host): _verdict(outcome, node.node_rank, label(node.host)) for node in placement.nodes}


def _one_slot(host: Host) -> Host:
    devices = None if host.devices is None else host.devices[:1]
    return dataclasses.replace(host, slots=(host.slots or (0,))[:1], devices=devices)


def _verdict(outcome: errand.Outcome, rank: int, host: str) -> Check:
    why, told = outcome.problem(rank, host), outcome.told.get(rank)
    if why is None and told:
        one = told[-1]
        return Check(NAME, True, f"{one['backend']}, {one['ranks']} ranks, {1e3 * one['exchange_s']:.1f} ms")
    return Check(NAME, False, why or "no word from its rank", "data from every node at every node", REMEDY)
