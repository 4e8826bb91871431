"""One tiny run before the run: a rank on each node, started as every rank is, that exchanges a little with the others.

It goes the way that training will go (interpreter, environment, rendezvous, gloo or NCCL over the chosen interface),
so what stops it would have stopped the run.
"""

from __future__ import annotations

import dataclasses
import queue
import secrets
import time
from typing import Any

from launcher import protocol
from launcher.checks import Check
from launcher.hostfile import Host
from launcher.nodes import Nodes, Unanswered
from launcher.plan import Attempt, NodeFacts, Placement, Program, label, node_token, orders, place
from launcher.planning import Parsed
from launcher.rundir import new_run_id
from launcher.transport.channel import Closed

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
    run_id = new_run_id("check")
    program = Program(
        ("-m", MODULE), run_id, f"{run_id}-{secrets.token_hex(8)}", parsed.workdir, parsed.recipe.launch.env
    )
    first = label(hosts[0])
    port = nodes.gather({first: ("pick_port", {"address": facts[first].address})})[first]
    if isinstance(port, Unanswered):
        return {first: Check(NAME, False, port.why, None, REMEDY)}
    attempt = Attempt(1, facts[first].address, port, 0)
    for node in placement.nodes:
        host = label(node.host)
        token = node_token(program, host)
        nodes.tell(host, protocol.Configure(protocol.VERSION, run_id, token, 25.0, 1.0, 1.0))
        nodes.tell(host, protocol.Start(1, orders(program, placement, node, attempt, facts[host])))
    return _verdicts(placement, *_watch(nodes, placement))


def _one_slot(host: Host) -> Host:
    devices = None if host.devices is None else host.devices[:1]
    return dataclasses.replace(host, slots=(host.slots or (0,))[:1], devices=devices)


def _watch(
    nodes: Nodes, placement: Placement
) -> tuple[dict[int, dict[str, Any]], dict[int, protocol.Exited], dict[str, str]]:
    """What each rank told, how it ended, and which hosts were lost meanwhile. Ends all ranks when one fails."""
    told: dict[int, dict[str, Any]] = {}
    ended: dict[int, protocol.Exited] = {}
    lost: dict[str, str] = {}
    idle: set[str] = set()
    deadline, stopped = time.monotonic() + LIMIT_S, False
    while len(idle | lost.keys()) < len(placement.nodes):
        failed = bool(lost) or any(rank.code != 0 for rank in ended.values())
        if not stopped and (failed or time.monotonic() > deadline):
            nodes.tell_all(protocol.Stop(1, 2.0))
            stopped, deadline = True, time.monotonic() + 10.0
        elif stopped and time.monotonic() > deadline:
            break
        try:
            host, message = nodes.next(1.0)
        except queue.Empty:
            nodes.ping()
            continue
        if isinstance(message, protocol.Record) and message.record["kind"] == "event":
            told[message.rank] = message.record
        elif isinstance(message, protocol.Exited):
            ended[message.rank] = message
        elif isinstance(message, protocol.Idle):
            idle.add(host)
        elif isinstance(message, Closed):
            lost[host] = message.why
            nodes.drop(host)
    return told, ended, lost


def _verdicts(
    placement: Placement,
    told: dict[int, dict[str, Any]],
    ended: dict[int, protocol.Exited],
    lost: dict[str, str],
) -> dict[str, Check]:
    return {
        label(node.host): _verdict(
            told.get(node.node_rank), ended.get(node.node_rank), lost.get(label(node.host))
        )
        for node in placement.nodes
    }


def _verdict(told: dict[str, Any] | None, ended: protocol.Exited | None, lost: str | None) -> Check:
    if told is not None and ended is not None and ended.code == 0:
        return Check(
            NAME, True, f"{told['backend']}, {told['ranks']} ranks, {1e3 * told['exchange_s']:.1f} ms"
        )
    if lost is not None:
        found = f"the node was lost: {lost}"
    elif ended is None:
        found = f"no end within {LIMIT_S:g} s"
    elif ended.error is not None:
        found = ended.error
    elif ended.signal == "SIGTERM":
        found = "waited for ranks that failed or did not come"
    else:
        lines = [line for line in ended.log_tail.splitlines() if line.strip()]
        found = (
            lines[-1].strip()
            if lines
            else f"ended by {ended.signal}"
            if ended.signal
            else f"code {ended.code}"
        )
    return Check(NAME, False, found, "data from every node at every node", REMEDY)
