"""Results of `distperf bench`, kept for the planner: one file for each set of hosts and ranks a host, the newest.

$DISTPERF_CACHE/rates/<hash>.json    or $XDG_CACHE_HOME/distperf/rates, or ~/.cache/distperf/rates
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from distperf.recipe.planner.rates import Measure, Rates
from distperf.recipe.runspec import from_json
from launcher import words
from launcher.errors import RunFolderError
from launcher.rundir import write_atomic

SCHEMA = 2
# What of a node must be as it was for its numbers to mean it.
HARDWARE = ("hostname", "cpus", "devices", "device_names")


@dataclass(frozen=True)
class Kept:
    """One measuring of some hosts. nodes: host -> what its agent said of it."""

    when: str
    ranks_per_host: int
    nodes: dict[str, dict[str, Any]]
    rates: Rates

    @property
    def source(self) -> str:
        """For people."""
        return self.rates.source


def folder() -> Path:
    """Where results are kept."""
    if own := os.environ.get("DISTPERF_CACHE"):
        return Path(own, "rates")
    if cache := os.environ.get("XDG_CACHE_HOME"):
        return Path(cache, "distperf", "rates")
    return Path("~/.cache/distperf/rates").expanduser()


def keep(
    when: str, nodes: dict[str, dict[str, Any]], ranks_per_host: int, measures: Sequence[Measure]
) -> Path:
    """Write them down; what an earlier measuring of the same hosts found of other things stays.

    Raises RunFolderError.
    """
    path = folder() / f"{_key(nodes, ranks_per_host)}.json"
    before = _read(path)
    named = {(m.what, m.where) for m in measures}
    old = before.rates.measures if before is not None and _same(before.nodes, nodes) else ()
    everything = [*(m for m in old if (m.what, m.where) not in named), *measures]
    value = {
        "schema": SCHEMA,
        "when": when,
        "ranks_per_host": ranks_per_host,
        "nodes": nodes,
        "measures": [asdict(measure) for measure in everything],
    }
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunFolderError(f"cannot make {path.parent}: {error.strerror}") from None
    write_atomic(path, json.dumps(value, indent=1) + "\n")
    return path


def of_hosts(hosts: Iterable[str], ranks_per_host: int) -> Kept | None:
    """What was measured of exactly these, with so many ranks at a time on each."""
    return _read(folder() / f"{_key(hosts, ranks_per_host)}.json")


def newest(ranks_per_host: int) -> Kept | None:
    """What was measured last, of any hosts, with so many ranks at a time on each."""
    found = [kept for path in folder().glob("*.json") if (kept := _read(path)) is not None]
    fitting = [kept for kept in found if kept.ranks_per_host == ranks_per_host]
    return max(fitting, key=lambda kept: kept.when, default=None)


def is_still(node: dict[str, Any], now: dict[str, Any]) -> bool:
    """The hardware is what it was."""
    return all(node.get(key) == now.get(key) for key in HARDWARE)


def _same(old: dict[str, dict[str, Any]], new: dict[str, dict[str, Any]]) -> bool:
    return old.keys() == new.keys() and all(is_still(old[host], new[host]) for host in new)


def _key(hosts: Iterable[str], ranks_per_host: int) -> str:
    text = json.dumps([sorted(hosts), ranks_per_host])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _read(path: Path) -> Kept | None:
    """None where there is nothing, or what is there is of another version: it is measured again."""
    try:
        value = json.loads(path.read_text())
        if value["schema"] != SCHEMA:
            return None
        measures = tuple(from_json(Measure, json.dumps(each)) for each in value["measures"])
        nodes, when, ranks = dict(value["nodes"]), str(value["when"]), int(value["ranks_per_host"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    text = f"distperf bench of {words.plural(len(nodes), 'host')} x {words.plural(ranks, 'rank')}, {when}"
    return Kept(when, ranks, nodes, Rates(text, measures))
