"""`distperf bench`: starts a rank in every slot, has all of them measure, judges and keeps what they found."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from distperf import contract
from launcher import errand
from launcher.bench import kept
from launcher.bench.findings import Finding, findings, measures
from launcher.bench.outliers import Outlier, outliers
from launcher.errors import MeasuringFailed
from launcher.launch import carrier_of, make_transport, needs
from launcher.nodes import Nodes
from launcher.nodeset import fold
from launcher.plan import Placement, label, place
from launcher.planning import Parsed, environment, slots_known, with_folders, with_probed_slots
from launcher.prepare import prepare

PARTS = ("matmul", "comm", "disk")
MODULE = "distperf.bench.run"
SILENCE_S = 300.0  # the longest that one measurement may take
FACTS = (*kept.HARDWARE, "memory_bytes")


@dataclass(frozen=True)
class Measured:
    """What was found, where it is kept, and on which ranks."""

    placement: Placement
    found: tuple[Finding, ...]
    odd: tuple[Outlier, ...]
    path: Path


def bench(
    parsed: Parsed, parts: tuple[str, ...], drives: tuple[str, ...], show: Callable[[float], None]
) -> Measured:
    """Measure `parts` on all hosts at once. show: called with the share that is done.

    Raises TransportError, PreflightError, and MeasuringFailed with each host's fault.
    """
    nodes = Nodes(make_transport(parsed), carrier_of(parsed))
    try:
        nodes.open_all(parsed.hosts)
        parsed = with_folders(parsed, nodes.folders)
        if not slots_known(parsed):
            parsed = with_probed_slots(parsed, nodes.facts)
        needed = replace(
            needs(parsed, check=True), training=True, modules=("distperf", "torch"), shared_dir=None
        )
        facts = prepare(nodes, parsed.hosts, replace(needed, drives=drives if "disk" in parts else ()))
        placement = place(parsed.hosts, lambda rank: {})
        order = json.dumps({"parts": parts, "drives": drives})
        env = {**environment(parsed.recipe), contract.BENCH_ENV: order}
        program = errand.program("bench", MODULE, parsed.workdir, env)
        why = errand.start(nodes, placement, facts, program)
        if why is not None:
            raise MeasuringFailed(f"{placement.ranks[0].host}: {why}")
        outcome = errand.watch(nodes, placement, SILENCE_S, lambda rank, event: show(event["share"]))
        return _judged(placement, outcome, {host: dict(seen) for host, seen in nodes.facts.items()})
    finally:
        nodes.close()


def _judged(placement: Placement, outcome: errand.Outcome, facts: dict[str, dict[str, Any]]) -> Measured:
    faults: dict[str, list[str]] = {}
    for rank in placement.ranks:
        why = outcome.problem(rank.rank, rank.host)
        if why is not None:
            faults.setdefault(why, []).append(rank.host)
    if faults:
        lines = [f"{fold(dict.fromkeys(hosts))}: {why}" for why, hosts in faults.items()]
        raise MeasuringFailed("\n".join(lines))
    found = findings(outcome.told, [rank.host for rank in placement.ranks])
    seen = {
        label(node.host): {key: facts[label(node.host)].get(key) for key in FACTS} for node in placement.nodes
    }
    ranks = max(len(node.ranks) for node in placement.nodes)
    path = kept.keep(time.strftime("%Y-%m-%d %H:%M"), seen, ranks, measures(found))
    return Measured(placement, tuple(found), tuple(outliers(found)), path)
