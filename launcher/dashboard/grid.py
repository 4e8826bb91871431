"""Ranks and nodes as a grid of heat that stays readable at a thousand ranks; stragglers on top. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from launcher import words
from launcher.dashboard import parts
from launcher.dashboard.lines import Line, Look, Span, cut, line, rule, safe
from launcher.follow import Seen
from launcher.heat import Scale, by_metric, odd_ranks, scale, values
from launcher.state import Rank, RunState

_BARS, _PLAIN_BARS = "▁▂▃▄▅▆▇█", ".:-=+*#%"
LABEL = 14
TOP = 3  # stragglers that are named


@dataclass(frozen=True)
class Choice:
    """What the grid shows: heat by which metric, ranks or whole nodes as cells (None: as fits), where the cursor is."""

    metric: str = "step time"
    nodes: bool | None = None
    cursor: int = 0


def grid(seen: Seen, look: Look, choice: Choice) -> list[Line]:
    """Summary, stragglers, the rank under the cursor, and the cells."""
    found = values(seen, choice.metric)
    heat = scale(choice.metric, found)
    lines = [
        summary(seen.state),
        _legend(choice, found, heat, look),
        *_odd(seen, look),
        about(seen, choice.cursor, look),
        *_node(seen, choice.cursor, look),
    ]
    hosts = by_host(seen.state.ranks)
    folded = choice.nodes if choice.nodes is not None else not _fits(hosts, look, len(lines) + 1)
    cells = _node_cells if folded else _rank_cells
    lines.append(rule("nodes: each cell is the worst rank of one" if folded else "ranks, by host", look))
    return [*lines, *cells(hosts, found, heat, look, choice)]


def summary(state: RunState) -> Line:
    """How many ranks are in which state."""
    counts = {name: sum(rank.state == name for rank in state.ranks)
              for name in ("running", "pending", "done", "failed", "stopped")}  # fmt: skip
    tones = {"running": "good", "failed": "bad", "stopped": "warn"}
    spans: list[Span | str] = [
        f" {words.plural(len(state.ranks), 'rank')} on {words.plural(len(state.hosts), 'host')}: "
    ]
    for name, count in counts.items():
        if count:
            spans += [Span(f"{count:,} {name}", tones.get(name, "text")), "  "]
    if state.unreachable:
        spans.append(Span(f"{words.plural(len(state.unreachable), 'host')} unreachable", "bad"))
    return line(*spans)


def _legend(choice: Choice, found: Mapping[int, float], heat: Scale, look: Look) -> Line:
    text = by_metric(choice.metric)
    if not found:
        return line(Span(f" heat: {choice.metric}: nothing known of it yet   (m: another)", "dim"))
    bars = look.pick(_BARS, _PLAIN_BARS)
    spans = [Span(bar, f"heat-{level}") for level, bar in enumerate(bars)]
    return line(
        Span(f" heat: {choice.metric}  {text(heat.cool)} ", "dim"),
        *spans,
        Span(f" {text(heat.hot)}   (m: another)", "dim"),
    )


def _odd(seen: Seen, look: Look) -> list[Line]:
    """The ranks that stand out in any way, worst first."""
    found = odd_ranks(seen)
    lines = []
    for one in found[:TOP]:
        host = safe(seen.state.ranks[one.rank].host, ascii=look.ascii)
        text = f" straggler: rank {one.rank} on {host}: {one.why}"
        lines.append(line(Span(cut(text, look.width, ascii=look.ascii), "warn", f"rank {one.rank}")))
    if len(found) > TOP:
        lines.append(line(Span(f" and {words.plural(len(found) - TOP, 'straggler')} more", "warn")))
    return lines


def by_host(ranks: Sequence[Rank]) -> dict[str, list[Rank]]:
    """Ranks of each host, in node order."""
    hosts: dict[str, list[Rank]] = {}
    for rank in ranks:
        hosts.setdefault(rank.host, []).append(rank)
    return hosts


def _per_row(hosts: Mapping[str, Sequence[Rank]], look: Look) -> tuple[int, int]:
    """Hosts in a row, and the blanks between them: none where that saves rows."""
    most = max((len(ranks) for ranks in hosts.values()), default=1)
    room = look.width - LABEL
    spaced, tight = max(1, (room + 1) // (most + 1)), max(1, room // most)
    for count in (tight, spaced):
        if count >= 4:
            count = 1 << (count.bit_length() - 1)  # a number that people can count by
        if count * most + (count - 1) <= room:
            return count, 1
        if count == tight or count * most <= room:
            return count, 0
    return 1, 0


def _fits(hosts: Mapping[str, Sequence[Rank]], look: Look, taken: int) -> bool:
    """Every rank has a cell on this screen or the next."""
    count, _ = _per_row(hosts, look)
    most = max((len(ranks) for ranks in hosts.values()), default=1)
    wraps = -(-most // max(1, look.width - LABEL))
    return -(-len(hosts) // count) * wraps <= 2 * max(4, look.height - taken)


def _rank_cells(
    hosts: Mapping[str, Sequence[Rank]], found: Mapping[int, float], heat: Scale, look: Look, choice: Choice
) -> list[Line]:
    count, gap = _per_row(hosts, look)
    names = list(hosts)
    lines = []
    for start in range(0, len(names), count):
        row = names[start : start + count]
        cells: list[Span] = []
        for name in row:
            if cells and gap:
                cells.append(Span(" "))
            cells += [cell(rank, found, heat, look, choice.cursor) for rank in hosts[name]]
        lines += _labelled(row[0], cells, look)
    return lines


def _labelled(name: str, cells: Sequence[Span], look: Look) -> list[Line]:
    """A row with the name of its first host; a host with more ranks than columns takes several."""
    room = max(1, look.width - LABEL)
    label = cut(safe(name, ascii=look.ascii), LABEL - 2, ascii=look.ascii)
    lines = []
    for start in range(0, len(cells), room):
        text = f" {label:<{LABEL - 1}}" if start == 0 else " " * LABEL
        lines.append(line(Span(text, "dim"), *cells[start : start + room]))
    return lines


def _node_cells(
    hosts: Mapping[str, Sequence[Rank]], found: Mapping[int, float], heat: Scale, look: Look, choice: Choice
) -> list[Line]:
    """A cell a node: what is worst among its ranks."""
    room = max(8, (look.width - LABEL) // 8 * 8)
    names = list(hosts)
    lines = []
    for start in range(0, len(names), room):
        cells = []
        for name in names[start : start + room]:
            ranks = hosts[name]
            here = any(rank.rank == choice.cursor for rank in ranks)
            worst = max(ranks, key=lambda rank: _badness(rank, found))
            cells.append(cell(worst, found, heat, look, worst.rank if here else -1))
        lines += _labelled(names[start], cells, look)
    return lines


def _badness(rank: Rank, found: Mapping[int, float]) -> tuple[int, float]:
    return ("done", "running", "pending", "stopped", "failed").index(rank.state), found.get(rank.rank, 0.0)


_SIGNS = {"failed": ("✗", "X", "bad"), "stopped": ("■", "s", "warn"), "done": ("✓", "v", "good"),
          "pending": ("·", "_", "dim")}  # fmt: skip


def cell(rank: Rank, found: Mapping[int, float], heat: Scale, look: Look, cursor: int) -> Span:
    """One character: the heat of a rank that runs, else a sign for its state."""
    if rank.state in _SIGNS:
        best, plain, tone = _SIGNS[rank.state]
        text = look.pick(best, plain)
    elif rank.rank in found:
        level = heat.level(found[rank.rank])
        text, tone = look.pick(_BARS, _PLAIN_BARS)[level], f"heat-{level}"
    else:
        text, tone = look.pick("○", "o"), "dim"
    return Span(text, "mark" if rank.rank == cursor else tone, f"rank {rank.rank}")


def about(seen: Seen, number: int, look: Look) -> Line:
    """The rank under the cursor, in one line."""
    if not 0 <= number < len(seen.state.ranks):
        return ()
    rank = seen.state.ranks[number]
    said = [f"rank {rank.rank} on {safe(rank.host, ascii=look.ascii)}", rank.phase or rank.state]
    if rank.phase and rank.state != "running":
        said[1] = rank.state
    said += [f"step {rank.step:,}"] if rank.step else []
    step_s, own_s = seen.tempo.step_s(rank.rank), seen.figures.own_s().get(rank.rank)
    own = "" if own_s is None else f" (own {own_s:.3g})"
    said += [f"{step_s:.3g} s a step{own}"] if step_s is not None else []
    said += [words.size(sum(rank.memory.values()))] if rank.memory else []
    text = cut(" " + "  ".join(said) + "   Enter opens it", look.width, ascii=look.ascii)
    return line(Span(text, "accent", f"rank {rank.rank}"))


def _node(seen: Seen, number: int, look: Look) -> list[Line]:
    """What the node of that rank does, its device where that is known, and what goes in and out."""
    if not 0 <= number < len(seen.state.ranks):
        return []
    rank = seen.state.ranks[number]
    figures, device = seen.figures.nodes.get(rank.host, {}), parts.device_of(seen, rank)
    found = "   ".join(filter(None, (parts.node(figures), device, parts.traffic(figures))))
    text = f"there: {found}"
    return [line(Span(" " + cut(text, look.width - 2, ascii=look.ascii), "dim"))] if found else []


def move(lines: Sequence[Line], cursor: int, right: int, down: int) -> int:
    """The rank that an arrow key leads to from the cursor, on the grid as it is drawn."""
    rows = [cells for spans in lines if (cells := _cells_of(spans))]
    at = next(
        ((y, x) for y, row in enumerate(rows) for x, (_, rank) in enumerate(row) if rank == cursor), None
    )
    if at is None:
        return rows[0][0][1] if rows else cursor
    y, x = at
    if right:
        flat = [rank for row in rows for _, rank in row]
        place = flat.index(cursor) + right
        return flat[min(len(flat) - 1, max(0, place))]
    column = rows[y][x][0]
    row = rows[min(len(rows) - 1, max(0, y + down))]
    return min(row, key=lambda cell: abs(cell[0] - column))[1]


def row_of(lines: Sequence[Line], cursor: int) -> int:
    """The line with the cursor's cell."""
    found = (y for y, spans in enumerate(lines) if any(rank == cursor for _, rank in _cells_of(spans)))
    return next(found, 0)


def _cells_of(spans: Line) -> list[tuple[int, int]]:
    """(column, rank) of a line's cells: one character each; other spans with a target are sentences."""
    found, column = [], 0
    for span in spans:
        if len(span.text) == 1 and span.target:
            found.append((column, int(span.target.removeprefix("rank "))))
        column += len(span.text)
    return found
