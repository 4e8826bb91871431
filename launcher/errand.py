"""A small program of ours on nodes, outside of any run: its ranks start as all ranks do, and nothing of it stays.

It goes the way that training will go (interpreter, environment, rendezvous, gloo or NCCL over the chosen interface).
"""

from __future__ import annotations

import queue
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from launcher import protocol
from launcher.nodes import Nodes, Unanswered
from launcher.plan import Attempt, NodeFacts, Placement, Program, label, node_token, orders
from launcher.rundir import new_run_id
from launcher.transport.channel import Closed

LEASE_S = 25.0
PING_S = 1.0
END_S = 10.0  # for ranks that were told to end


@dataclass
class Outcome:
    """What came of it."""

    told: dict[int, list[dict[str, Any]]] = field(default_factory=dict)  # rank -> its events
    ended: dict[int, protocol.Exited] = field(default_factory=dict)
    lost: dict[str, str] = field(default_factory=dict)  # host -> why

    def problem(self, rank: int, host: str) -> str | None:
        """Why a rank did not come to its end; None where it did."""
        ended = self.ended.get(rank)
        if ended is not None and ended.code == 0:
            return None
        if host in self.lost:
            return f"the node was lost: {self.lost[host]}"
        if ended is None:
            return "no end within the time"
        if ended.error is not None:
            return ended.error
        if ended.signal == "SIGTERM":
            return "waited for ranks that failed or did not come"
        lines = [line for line in ended.log_tail.splitlines() if line.strip()]
        return (
            lines[-1].strip()
            if lines
            else f"ended by {ended.signal}"
            if ended.signal
            else f"code {ended.code}"
        )


def program(name: str, module: str, workdir: str, env: Mapping[str, str]) -> Program:
    """A module of ours as what ranks run."""
    run_id = new_run_id(name)
    return Program(("-m", module), run_id, f"{run_id}-{secrets.token_hex(8)}", workdir, dict(env))


def start(nodes: Nodes, placement: Placement, facts: Mapping[str, NodeFacts], what: Program) -> str | None:
    """Start its ranks; why the first node has no port for them to meet at, or None."""
    first = placement.ranks[0].host
    port = nodes.gather({first: ("pick_port", {"address": facts[first].address})})[first]
    if isinstance(port, Unanswered):
        return port.why
    attempt = Attempt(1, facts[first].address, port, 0)
    for node in placement.nodes:
        host = label(node.host)
        token = node_token(what, host)
        nodes.tell(host, protocol.Configure(protocol.VERSION, what.run_id, token, LEASE_S, 1.0, 1.0))
        nodes.tell(host, protocol.Start(1, orders(what, placement, node, attempt, facts[host])))
    return None


def watch(
    nodes: Nodes,
    placement: Placement,
    silence_s: float,
    heard: Callable[[int, dict[str, Any]], None] = lambda rank, event: None,
) -> Outcome:
    """See it through. All ranks are ended when one fails, a node is lost, or none says anything for `silence_s`.

    heard: called with each event of a rank.
    """
    found, idle = Outcome(), set[str]()
    deadline, stopped, pinged = time.monotonic() + silence_s, False, 0.0
    while len(idle | found.lost.keys()) < len(placement.nodes):
        failed = bool(found.lost) or any(rank.code != 0 for rank in found.ended.values())
        if not stopped and (failed or time.monotonic() > deadline):
            nodes.tell_all(protocol.Stop(1, 2.0))
            stopped, deadline = True, time.monotonic() + END_S
        elif stopped and time.monotonic() > deadline:
            break
        if time.monotonic() - pinged > PING_S:
            nodes.ping()
            pinged = time.monotonic()
        try:
            host, message = nodes.next(PING_S)
        except queue.Empty:
            continue
        if isinstance(message, protocol.Record) and message.record["kind"] == "event":
            found.told.setdefault(message.rank, []).append(message.record)
            heard(message.rank, message.record)
            deadline = deadline if stopped else time.monotonic() + silence_s
        elif isinstance(message, protocol.Exited):
            found.ended[message.rank] = message
        elif isinstance(message, protocol.Idle):
            idle.add(host)
        elif isinstance(message, Closed):
            found.lost[host] = message.why
            nodes.drop(host)
    return found
