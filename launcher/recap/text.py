"""The report as lines of text. Pure."""

from __future__ import annotations

import time

from launcher import report, words
from launcher.chronicle import Try, who
from launcher.dashboard.planned import KINDS, estimated
from launcher.heat import odd_ranks
from launcher.logs import printable_lines
from launcher.nodeset import fold
from launcher.recap import usage
from launcher.recap.facts import Facts
from launcher.series import numbers


def as_text(facts: Facts) -> list[str]:
    """Everything, the first failure first."""
    seen = facts.seen
    state = seen.state
    lines = []
    if state.first_failure is not None and seen.name != "finished":
        lines += report.failure_lines(state.first_failure)
    lines += [
        report.headline(state) if state.over else f"run {state.run_id}: {seen.name}, step {seen.step}",
        "",
    ]
    lines += [f"{name:<12}{text}" for name, text in what_ran(facts)]
    lines += ["", "attempts", *("  " + line for one in seen.chronicle.tries for line in attempt_lines(one))]
    lines += [
        "",
        f"goodput      {facts.goodput.share:.1%} of {words.seconds(facts.goodput.total_s)} made progress",
    ]
    lines += [f"  {name:<24}{words.seconds(value):>12}  {value / max(facts.goodput.total_s, 1e-9):6.1%}"
              for name, value in facts.goodput.parts if value >= 0.05]  # fmt: skip
    curve = [f"{name:<12}{text}" for name, text in results(facts)]
    lines += ["", *curve] if curve else []
    lines += _usage_lines(facts)
    odd = straggler_lines(facts)
    lines += ["", *odd] if odd else []
    pairs = plan_against_actual(facts)
    lines += ["", "model state a rank     planned        held"] if pairs else []
    lines += [f"  {kind:<16}{words.size(planned):>12}{words.size(held):>12}" for kind, planned, held in pairs]
    return [*lines, "", f"folder      {seen.dir}"]


def _usage_lines(facts: Facts) -> list[str]:
    """Where steps went, and what nodes did."""
    steps, nodes = usage.step_rows(facts.usage), usage.node_rows(facts.usage)
    stages = usage.imbalance(facts.usage)
    lines = ["", "a step                mean   share        most"] if steps else []
    lines += [f"  {part:<14}{mean:>10}  {share:>6}  {most}" for part, mean, share, most in steps]
    lines += ["", f"stages       {stages}"] if stages else []
    lines += ["", "nodes                 mean        most"] if nodes else []
    return lines + [f"  {name:<16}{mean:>12}  {most}" for name, mean, most in nodes]


def what_ran(facts: Facts) -> list[tuple[str, str]]:
    """Name and value: when, what, where."""
    seen, spec = facts.seen, facts.seen.spec
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seen.chronicle.created_time))
    rows = [("started", f"{when}, took {words.seconds(seen.now_t)}"), ("distperf", facts.version)]
    rows.append(("ranks", f"{len(seen.state.ranks):,} on {fold(seen.state.hosts)}"))
    if "script" in spec:
        rows.append(("script", printable_lines(str(spec["script"].get("path")))[0]))
    elif spec:
        model, train = spec["model"], spec["train"]
        shape = f"{model['layers']} layers, {model['hidden']} wide, vocabulary {model['vocab']:,}"
        batch = f"{train['global_batch']:,} x {spec['data']['seq_len']:,} tokens"
        rows.append(("model", f"{model['family']}, {shape}"))
        rows.append(("training", f"{train['steps']:,} steps of {batch}, {spec['precision']}"))
        rows.append(("parallel", ", ".join(f"{axis} {size}" for axis, size in spec["parallel"].items())))
    return rows


def attempt_lines(one: Try) -> list[str]:
    """An attempt in a line, and why it failed in another."""
    parts = [f"{one.attempt}: {words.plural(one.ranks, 'rank')} on {words.plural(one.hosts, 'host')}"]
    parts.append(f"began after {words.seconds(one.began_t)}")
    if one.stepped_t is not None:
        parts.append(f"{words.seconds(one.stepped_t - one.began_t)} to the first step")
    if one.last_step:
        parts.append(f"came to step {one.last_step:,}")
    if one.checkpoints:
        parts.append(f"{words.plural(one.checkpoints, 'checkpoint')} in {words.seconds(one.checkpoint_s)}")
    lines = [", ".join(parts)]
    if one.failure is not None:
        lines.append(f"   failed: {who(one.failure)}: {printable_lines(one.failure.message)[0]}")
    return lines


def results(facts: Facts) -> list[tuple[str, str]]:
    """What the curves come to."""
    first, last, rows = facts.first, facts.seen.last, []
    for name, label, form in (("loss", "loss", "{:.4f}"), ("grad_norm", "grad norm", "{:.3g}")):
        values = [line[name] for line in (first, last) if isinstance(line.get(name), (int, float))]
        if values:
            rows.append((label, " -> ".join(form.format(value) for value in values)))
    for name, label, form in (
        ("tokens_per_s", "tokens/s", "{:,.0f}"),
        ("mfu", "MFU", "{:.1%}"),
        ("step_s", "step", "{:.3g} s"),
    ):
        points = sorted(value for _, value in numbers(facts.seen.points, name))
        if points:
            rows.append((label, f"{form.format(points[len(points) // 2])} (median)"))
    if isinstance(last.get("peak_bytes"), (int, float)):
        rows.append(("peak memory", f"{words.size(last['peak_bytes'])} on rank 0"))
    return rows


def straggler_lines(facts: Facts) -> list[str]:
    """Ranks that stood out at the end."""
    ranks = facts.seen.state.ranks
    found = odd_ranks(facts.seen)[:8]
    return [f"straggler    rank {one.rank} on {ranks[one.rank].host}: {one.why}" for one in found]


def plan_against_actual(facts: Facts) -> list[tuple[str, int, int]]:
    """Kind, bytes planned for a rank, and the most that a rank held."""
    if not facts.seen.spec or "script" in facts.seen.spec:
        return []
    planned = estimated(facts.seen.spec)
    held = {
        kind: max((rank.memory.get(f"{kind}_bytes", 0) for rank in facts.seen.state.ranks), default=0)
        for kind in KINDS
    }
    return [(kind, planned[kind], held[kind]) for kind in KINDS if kind in planned and held[kind]]
