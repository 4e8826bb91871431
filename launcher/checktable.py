"""What `distperf check` prints: one table, hosts folded where they agree, or JSON. Pure."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from launcher import words
from launcher.checking import Report
from launcher.checks import Check
from launcher.nodeset import fold

SCHEMA = 1
SHOWN = 3  # different findings of hosts that are all well


def as_json(report: Report) -> dict[str, Any]:
    """Every check of every host."""
    hosts = [
        {"host": host.host, "ok": host.ok, "checks": [asdict(check) for check in host.checks]}
        for host in report.hosts
    ]
    return {"schema": SCHEMA, "hosts": hosts}


def as_text(report: Report) -> list[str]:
    """A row for each check that hosts agree on, faults with what to do under them, and a verdict."""
    rows = _rows(report)
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    lines = []
    for name, status, hosts, found, more in rows:
        lines.append(f"{name:<{widths[0]}}  {status:<{widths[1]}}  {hosts:<{widths[2]}}  {found}".rstrip())
        lines += [" " * (widths[0] + 2) + line for line in more]
    return [*lines, verdict(report)]


def verdict(report: Report) -> str:
    """The last line."""
    total = words.plural(len(report.hosts), "host")
    bad = [host.host for host in report.hosts if not host.ok]
    if bad:
        return f"{len(bad)} of {total} cannot take part: {fold(bad)}"
    warned = [host.host for host in report.hosts if any(check.remedy for check in host.checks)]
    return f"{total}: all ok" + (f"; see the warnings for {fold(warned)}" if warned else "")


def _rows(report: Report) -> list[tuple[str, str, str, str, list[str]]]:
    """(check, status, hosts, found, lines under it): what is well is one row a check, faults are apart."""
    groups: dict[tuple[str, str, str], list[tuple[str, Check]]] = {}
    for host in report.hosts:
        for check in host.checks:
            status = "FAIL" if not check.ok else "warn" if check.remedy else "ok"
            apart = "" if status == "ok" else f"{check.found}\n{check.remedy}"
            groups.setdefault((check.name, status, apart), []).append((host.host, check))
    order = list(dict.fromkeys(name for name, _, _ in groups))
    rows: list[tuple[str, str, str, str, list[str]]] = []
    for (name, status, _), members in sorted(groups.items(), key=lambda item: order.index(item[0][0])):
        hosts, check = fold(host for host, _ in members), members[0][1]
        if status == "ok":
            rows.append((name, status, hosts, _together([check.found for _, check in members]), []))
            continue
        first, *rest = check.found.splitlines()
        wanted = [f"wanted: {check.wanted}"] if check.wanted else []
        rows.append((name, status, hosts, first, [*rest, *wanted, f"do: {check.remedy}"]))
    return rows


def _together(found: list[str]) -> str:
    different = list(dict.fromkeys(found))
    rest = len(different) - SHOWN
    return "; ".join(different[:SHOWN]) + (f"; and {rest} more" if rest > 0 else "")
