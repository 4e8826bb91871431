"""What was planned against what came: memory, a step's time, and what `auto` became. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from launcher import comparison, words
from launcher.comparison import Pair
from launcher.dashboard import parts
from launcher.dashboard.grid import by_host
from launcher.dashboard.lines import Line, Look, Span, gauge, line, rule, safe
from launcher.follow import Seen
from launcher.nodeset import fold_numbers

UNKNOWN = " no time was planned: `distperf bench` measures what a plan of time needs"


def planned(seen: Seen, look: Look) -> list[Line]:
    """The view: figures of memory and time, each planned and as it came; what was resolved; which ranks are where."""
    if not seen.spec or "script" in seen.spec:
        return [
            line(Span(" a script of your own: nothing was planned but where its ranks run", "dim")),
            (),
            *_places(seen, look),
        ]
    times = comparison.seconds(seen)
    lines = [rule("memory of a rank: planned, and the most that one held", look)]
    lines += _bars(comparison.memory(seen), words.size, look)
    lines += [(), rule("a step: planned, and of late", look)] if times else []
    lines += _bars(times, parts.seconds_of, look)
    if times and times[0].planned is None:
        lines.append(line(Span(UNKNOWN, "dim")))
    return [*lines, (), rule("as resolved", look), *_resolved(seen.spec, look), (), *_places(seen, look)]


def _bars(pairs: Sequence[Pair], text: Callable[[float], str], look: Look) -> list[Line]:
    """Two bars for each pair, one under the other, and by how much they differ; one where nothing was planned."""
    wanted = ("planned", "came") if any(pair.planned is not None for pair in pairs) else ("came",)
    room = max(8, look.width - 42)
    most = max((value for pair in pairs for value in (pair.planned, pair.came) if value), default=0.0)
    rows = []
    for pair in pairs:
        for label, value, tone in (("planned", pair.planned, "accent"), ("came", pair.came, "good")):
            if label not in wanted:
                continue
            name = Span(f" {pair.name if label == wanted[0] else '':<12}{label:<9}", "dim")
            if value is None:
                rows.append(line(name, Span("not known", "dim")))
                continue
            off = f"  {pair.off}" if label == "came" else ""
            rows.append(
                line(name, *gauge(value / most if most else 0.0, room, look, tone), f" {text(value)}{off}")
            )
    return rows


def _resolved(spec: dict[str, Any], look: Look) -> list[Line]:
    """What "auto" became, with the reason, and what else says what is trained."""
    train = spec.get("train", {})
    batch = f"{train.get('global_batch')} = micro {train.get('micro_batch')} x accumulation {train.get('accumulation')}"
    rows = [
        ("parallel", comparison.parallel(spec)),
        ("precision", str(spec.get("precision"))),
        ("batch", batch),
    ]
    rows += [(key, f"{reason}") for key, reason in sorted(spec.get("reasons", {}).items())]
    room = max(len(name) for name, _ in rows) + 2
    return [line(Span(f" {name:<{room}}", "dim"), safe(text, ascii=look.ascii)) for name, text in rows]


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
