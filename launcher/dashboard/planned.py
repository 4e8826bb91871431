"""What was planned against what came: memory of model state by kind, and the mesh. Pure."""

from __future__ import annotations

import json
from typing import Any

from distperf.recipe.holdings import largest_state
from distperf.recipe.runspec import RunSpec, from_json
from launcher import words
from launcher.dashboard.grid import by_host
from launcher.dashboard.lines import Line, Look, Span, gauge, line, rule, safe
from launcher.dashboard.overview import recent_step_s
from launcher.follow import Seen
from launcher.nodeset import fold_numbers

KINDS = ("parameters", "gradients", "optimizer")


def planned(seen: Seen, look: Look) -> list[Line]:
    """The view: per kind of memory the plan, what the fullest rank held, and the difference."""
    if not seen.spec or "script" in seen.spec:
        return [
            line(Span(" a script of your own: nothing was planned but where its ranks run", "dim")),
            (),
            *_places(seen, look),
        ]
    estimate = estimated(seen.spec)
    lines = [rule("model state a rank: planned, and the most that a rank held", look)]
    held = {
        kind: max((rank.memory.get(f"{kind}_bytes", 0) for rank in seen.state.ranks), default=0)
        for kind in KINDS
    }
    most = max([1, *estimate.values(), *held.values()])
    for kind in KINDS:
        lines += _pair(kind, estimate.get(kind), held[kind], most, look)
    step_s = recent_step_s(seen)
    if step_s is not None:
        lines += [line(Span(" step time   ", "dim"), f"{step_s:.3g} s, of late (none was planned)")]
    return [*lines, (), rule("as resolved", look), *_resolved(seen.spec), (), *_places(seen, look)]


def estimated(spec: dict[str, Any]) -> dict[str, int]:
    """Bytes by kind that the plan counts for the fullest rank.

    Empty where only the model's own code knows, or a version with other fields wrote the spec.
    """
    try:
        run = from_json(RunSpec, json.dumps(spec))
    except (ValueError, TypeError, KeyError, AttributeError):
        return {}
    found = largest_state(run)
    return {} if found is None else {kind: getattr(found, f"{kind}_bytes") for kind in KINDS}


def _pair(kind: str, planned_bytes: int | None, held: int, most: int, look: Look) -> list[Line]:
    """Two bars, one under the other, and by how much they differ."""
    room = max(8, look.width - 42)
    rows = []
    for name, value, tone in (("planned", planned_bytes, "accent"), ("held", held or None, "good")):
        label = f" {kind if name == 'planned' else '':<12}{name:<8}"
        if value is None:
            rows.append(line(Span(label, "dim"), Span("not known", "dim")))
            continue
        off = ""
        if name == "held" and planned_bytes:
            off = f"  {(value - planned_bytes) / planned_bytes:+.1%}"
        rows.append(
            line(Span(label, "dim"), *gauge(value / most, room, look, tone), f" {words.size(value)}{off}")
        )
    return rows


def _resolved(spec: dict[str, Any]) -> list[Line]:
    """What "auto" became, with the reason, and what else says what is trained."""
    parallel = ", ".join(f"{axis} {size}" for axis, size in spec.get("parallel", {}).items())
    train = spec.get("train", {})
    batch = f"{train.get('global_batch')} = micro {train.get('micro_batch')} x accumulation {train.get('accumulation')}"
    rows = [("parallel", parallel), ("precision", str(spec.get("precision"))), ("batch", batch)]
    rows += [(key, f"{reason}") for key, reason in sorted(spec.get("reasons", {}).items())]
    room = max(len(name) for name, _ in rows) + 2
    return [line(Span(f" {name:<{room}}", "dim"), safe(text)) for name, text in rows]


def _places(seen: Seen, look: Look) -> list[Line]:
    """Hosts and their ranks."""
    lines = [rule("where", look)]
    for host, ranks in by_host(seen.state.ranks).items():
        lines.append(
            line(
                Span(f" {safe(host, ascii=look.ascii)}", "text"),
                Span(f"  ranks {fold_numbers(r.rank for r in ranks)}", "dim"),
            )
        )
    return lines
