"""Why a run had no room: what was planned, what was there, and the cheapest ways out. Read from its folder."""

from __future__ import annotations

import json
from math import inf
from typing import Any

from distperf.recipe.planner.hardware import Hardware
from distperf.recipe.planner.remedies import Remedy, remedies
from distperf.recipe.runspec import RunSpec, from_json
from launcher import words
from launcher.rundir import RunDir

LARGEST_TERMS = 4


def explained(run: RunDir) -> list[str]:
    """Lines for the report; none where nothing was planned: a script, a model of one's own, an older run."""
    try:
        spec, plan = from_json(RunSpec, run.runspec.read_text()), json.loads(run.plan.read_text())
        hardware = from_json(Hardware, json.dumps(plan["hardware"]))
        ranks = int(plan["ranks_per_host"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return []
    return [*_planned(plan), *_ways_out(remedies(spec, hardware, ranks), plan)]


def _planned(plan: dict[str, Any]) -> list[str]:
    terms = sorted(plan["terms"].items(), key=lambda term: -term[1])[:LARGEST_TERMS]
    parts = ", ".join(f"{name} {words.size(size)}" for name, size in terms)
    room = plan["hardware"]["memory_bytes"]
    there = (
        f"there: {words.size(room)} ({plan['hardware']['source']})"
        if room
        else "how much there is was not known"
    )
    return [
        f"  planned: {words.size(plan['per_rank']['total_bytes'])} for the fullest rank ({parts}); {there}"
    ]


def _ways_out(found: list[Remedy], plan: dict[str, Any]) -> list[str]:
    if not found:
        return ["  no single key would take much less memory: more ranks, or a smaller model"]
    now = plan["per_rank"]["total_bytes"]
    lines = ["  ways out, the cheapest first:"]
    for remedy in found:
        slower = _slower(remedy.slower)
        fits = ", and would still not fit by the plan" if remedy.fits is False else ""
        keys = " ".join(f"--set {each}" for each in (*remedy.with_it, f"{remedy.key}={remedy.value}"))
        size = f"{words.size(remedy.total_bytes)} instead of {words.size(now)}"
        lines.append(f"    {keys}  {size}, {slower}{fits}")
    return lines


def _slower(times: float) -> str:
    if times == inf:
        return "steps take longer, by how much is not known"
    return f"steps take about {times:.2f} times as long" if times > 1.005 else "at the same speed"
