"""One rank: who it is, how it goes, what it is doing, what it wrote last. Pure."""

from __future__ import annotations

import time
from collections.abc import Sequence

from launcher import stacks, tempo, words
from launcher.dashboard import parts
from launcher.dashboard.lines import Line, Look, Span, cut, line, rule, safe
from launcher.follow import Seen
from launcher.state import Rank

_TONES = {"running": "good", "failed": "bad", "stopped": "warn", "done": "good"}


def one_rank(seen: Seen, number: int, tail: Sequence[str], look: Look) -> list[Line]:
    """The view of a rank. tail: the last lines of its log."""
    if not 0 <= number < len(seen.state.ranks):
        return [line(Span(f" there is no rank {number} in this attempt", "dim"))]
    rank = seen.state.ranks[number]
    lines = [*_facts(seen, rank, look), *_stack(seen, rank, look), rule("its output", look)]
    room = max(3, look.height - len(lines))
    shown = tail[-room:]
    if not shown:
        return [*lines, line(Span(" nothing yet", "dim"))]
    return [*lines, *(line(Span(" " + cut(text, look.width - 2, ascii=look.ascii))) for text in shown)]


def _facts(seen: Seen, rank: Rank, look: Look) -> list[Line]:
    late = tempo.behind([r.step for r in seen.state.ranks])[rank.rank]
    step_s = seen.tempo.step_s(rank.rank)
    host = safe(rank.host, ascii=look.ascii)
    axes = "  ".join(f"{axis} {at}" for axis, at in rank.coordinates.items())
    memory = ", ".join(
        f"{kind.removesuffix('_bytes')} {words.size(held)}" for kind, held in rank.memory.items()
    )
    speed = "" if step_s is None else f"   {step_s:.3g} s a step"
    rows = [
        ("rank", f"{rank.rank}   local rank {rank.local_rank} on {host} (node {rank.node_rank})"),
        ("process", f"pid {rank.pid}" if rank.pid else "not started"),
        ("place", axes),
        ("phase", rank.phase or ""),
        ("step", (f"{rank.step:,}" + (f"   {late} behind" if late else "") + speed) if rank.step else ""),
        ("a step", parts.split(seen.figures.ranks.get(rank.rank, {}))),
        ("memory", memory),
        ("device", parts.device_of(seen, rank)),
        ("node", parts.node(seen.figures.nodes.get(rank.host, {}))),
        ("traffic", parts.traffic(seen.figures.nodes.get(rank.host, {}))),
    ]
    state = line(Span(f" {'state':<11}", "dim"), Span(rank.state, _TONES.get(rank.state, "text")))
    lines = [
        line(Span(f" {name:<11}", "dim"), cut(text, look.width - 13, ascii=look.ascii))
        for name, text in rows
        if text
    ]
    failure = seen.state.first_failure
    if failure is not None and failure.rank == rank.rank and failure.attempt == seen.state.attempt:
        text = cut(safe(failure.message.split("\n")[0], ascii=look.ascii), look.width - 13, ascii=look.ascii)
        lines.append(line(Span(f" {'failed':<11}", "dim"), Span(text, "bad")))
    return [lines[0], state, *lines[1:]]


def _stack(seen: Seen, rank: Rank, look: Look) -> list[Line]:
    """Where it was when stacks were last taken, on demand or as the run stalled."""
    found = seen.looks.get(rank.rank)
    if found is None:
        return []
    place = stacks.place(found.look)
    when = time.strftime("%H:%M:%S", time.localtime(seen.chronicle.created_time + found.t))
    lines = [rule(f"stack at {when}", look)]
    lines.append(
        line(Span(" " + cut(safe(place.sentence, ascii=look.ascii), look.width - 2, ascii=look.ascii)))
    )
    for frame in place.frames[:8]:
        lines.append(
            line(Span("   " + cut(safe(frame, ascii=look.ascii), look.width - 4, ascii=look.ascii), "dim"))
        )
    return lines
