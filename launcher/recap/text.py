"""The report as lines of text. Pure."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from launcher import comparison, report, words
from launcher.chronicle import Try, who
from launcher.dashboard import parts
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
    lines += ["", "plan against actual    planned        came"] if pairs else []
    lines += [f"  {name:<16}{planned:>12}{came:>12}  {off}".rstrip() for name, planned, came, off in pairs]
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
        train = spec["train"]
        batch = f"{train['global_batch']:,} x {spec['data']['seq_len']:,} tokens"
        rows.append(("model", _model(spec["model"])))
        rows.append(("training", f"{train['steps']:,} steps of {batch}, {spec['precision']}"))
        rows.append(("parallel", comparison.parallel(spec)))
    return rows


def _model(spec: Mapping[str, Any]) -> str:
    """A model in a line: its shape, or where it comes from."""
    if "layers" in spec:
        shape = f"{spec['layers']} layers, {spec['hidden']} wide, vocabulary {spec['vocab']:,}"
        return f"{spec['family']}, {shape}"
    return printable_lines(f"{spec.get('factory') or spec.get('path')} ({spec['family']})")[0]


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


def plan_against_actual(facts: Facts) -> list[tuple[str, str, str, str]]:
    """Figure, as planned, as it came (of steps: the newest ones), and the difference."""
    written = [
        *((pair, words.size) for pair in comparison.memory(facts.seen)),
        *((pair, parts.seconds_of) for pair in comparison.seconds(facts.seen)),
    ]
    return [
        (pair.name, text(pair.planned), text(pair.came), pair.off)
        for pair, text in written
        if pair.planned is not None and pair.came is not None
    ]
