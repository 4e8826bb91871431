"""What `bench` prints, and its JSON. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from distperf.recipe.planner.rates import HOST, HOSTS, Measure
from launcher import words
from launcher.bench.findings import EMPTY_BYTES, LINK, OF_A_HOST, Finding, by_host, measures
from launcher.bench.outliers import Outlier
from launcher.bench.run import Measured

SCHEMA = 1
FLOPS = ("matmul", "layer")
ADDED = {
    "tensor": "a layer over tp: more",
    "ulysses": "over cp (ulysses): more",
    "ring": "over cp (ring): more",
}
SCOPES = {HOST: "inside a host", HOSTS: "over all hosts"}
GIGA = 1e9


def as_json(measured: Measured) -> dict[str, Any]:
    """Every number, and which hosts are odd."""
    return {
        "schema": SCHEMA,
        "hosts": [node.host.name for node in measured.placement.nodes],
        "world_size": measured.placement.world_size,
        "measures": [asdict(measure) for measure in measures(measured.found)],
        "by_host": [
            {"what": what, "where": where, "values": values}
            for (what, where), values in by_host(measured.found).items()
        ],
        "links": [asdict(one) for one in measured.found if one.what == LINK],
        "outliers": [asdict(one) for one in measured.odd],
        "kept": str(measured.path),
    }


def as_text(measured: Measured) -> list[str]:
    """For people: what each host does by itself, what goes between ranks, who is slow."""
    found = measured.found
    text = [*_hosts_table(found), *_between(found)]
    cached = sorted({one.where for one in found if one.what in ("read", "write") and not one.direct})
    text += [f"{where} takes no direct I/O: its numbers are the page cache's" for where in cached]
    text += [sentence(one) for one in measured.odd] or _nobody(measured)
    return [*text, f"kept in {measured.path}; `distperf plan` reckons with it for these hosts"]


def _nobody(measured: Measured) -> list[str]:
    nodes = len(measured.placement.nodes)
    return [f"no host and no link is slow beside the others ({nodes} hosts)"] if nodes > 1 else []


def sentence(one: Outlier) -> str:
    """Who is slow in what, and what is usual."""
    who = one.hosts[0] if len(one.hosts) == 1 else f"the link between {' and '.join(one.hosts)}"
    if one.where == "latency":
        return f"slow: {who}: a message takes {_short(one.value)}, where {_short(one.usual)} are usual"
    share = f"{one.value / one.usual:.0%} of what is usual"
    if one.what == LINK:
        what = "even its best link has" if len(one.hosts) == 1 else "it has"
        return f"slow: {who}: {what} {share}"
    name = f"{one.what} {one.where}".strip()
    return f"slow: {who}: {name} at {_rate(one.what, one.value)}, {share} ({_rate(one.what, one.usual)})"


def _hosts_table(found: Sequence[Finding]) -> list[str]:
    """A row a host, a column for each thing that ranks do by themselves."""
    table = by_host(found)
    things = sorted(table, key=lambda thing: (OF_A_HOST.index(thing[0]), thing[1]))
    if not things:
        return []
    hosts = list(dict.fromkeys(one.host for one in found))
    rows = [["host (a rank of it)", *(f"{what} {where}".strip() for what, where in things)]]
    for host in hosts:
        cells = [table[thing].get(host) for thing in things]
        rows.append(
            [host, *("" if v is None else _rate(t[0], v) for t, v in zip(things, cells, strict=True))]
        )
    return [*words.table(rows), ""]


def _between(found: Sequence[Finding]) -> list[str]:
    """A row for each collective, a column for each size: time of a call, and bytes a second that a rank sends."""
    lines: list[str] = []
    all_ = measures(found)
    for where, name in SCOPES.items():
        own = [m for m in all_ if m.where == where]
        if not own:
            continue
        rows = [[name, "the smallest", "", "the largest"]]
        rows += [_row(measure) for measure in own]
        lines += [*words.table(rows), ""]
    return lines


def _row(measure: Measure) -> list[str]:
    """A link's smallest message is an empty one; what is added to a layer is no rate of a link."""
    points, name = measure.points, ADDED.get(measure.what, measure.what)
    cells = [
        f"{words.size(sent)}: {_short(seconds)}"
        + ("" if measure.what in ADDED else f", {sent / seconds / GIGA:.2f} GB/s")
        for sent, seconds in points
    ]
    if measure.what == LINK and points[0][0] == EMPTY_BYTES:
        cells[0] = f"empty: {_short(points[0][1])}"
    first, *middle, last = cells if len(cells) > 1 else [cells[0], cells[0]]
    return [name, first, "; ".join(middle), last]


def _rate(what: str, value: float) -> str:
    return f"{value / GIGA:,.1f} GFLOP/s" if what in FLOPS else f"{value / GIGA:,.2f} GB/s"


def _short(seconds: float) -> str:
    return f"{1e6 * seconds:.0f} us" if seconds < 1e-3 else f"{1e3 * seconds:.1f} ms"
