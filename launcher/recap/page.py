"""The report as one HTML page: no scripts, nothing loaded from anywhere. Pure."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from html import escape

from launcher import report, words
from launcher.chronicle import Try, who
from launcher.dashboard.lines import safe
from launcher.logs import printable_lines
from launcher.recap import text, usage
from launcher.recap.facts import Facts, spec_lines
from launcher.recap.svg import curve, shares
from launcher.series import numbers
from launcher.state import Failure

CURVES = (("loss", "loss"), ("tokens_per_s", "tokens/s"), ("grad_norm", "gradient norm"), ("mfu", "MFU"),
          ("lr", "learning rate"), ("step_s", "seconds a step"))  # fmt: skip
NODE_CURVES = (("node_cpu", "CPU in use"), ("device_busy", "devices busy"), ("device_celsius", "device heat"))

STYLE = """
:root { color-scheme: light dark; --ink: #1c2128; --dim: #5c6670; --line: #d5dae0; --page: #fff; --box: #f6f8fa;
  --blue: #0b5cad; --good: #1d7a34; --bad: #b3261e; --warn: #b7791f; --grey: #9aa4ae; --teal: #2f8f9d; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e8ec; --dim: #98a2ad; --line: #343c45; --page: #14181d;
  --box: #1c2229; --blue: #62aef0; --good: #6cc070; --bad: #f06a5d; --warn: #e6b450; --grey: #6b757f;
  --teal: #58b5c2; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--page); max-width: 1180px;
  margin: 2rem auto; padding: 0 1.2rem; }
h1 { font-size: 1.5rem; margin: 0; } h2 { font-size: 1.1rem; margin: 2rem 0 .6rem; }
.state { font-weight: 600; } .finished, .running { color: var(--good); } .failed, .lost, .stalled { color: var(--bad); }
.stopped, .restarting { color: var(--warn); } .dim { color: var(--dim); }
table { border-collapse: collapse; } td, th { text-align: left; padding: .2rem 1.2rem .2rem 0; vertical-align: top; }
th { font-weight: 600; color: var(--dim); } td.number { text-align: right; font-variant-numeric: tabular-nums; }
pre { background: var(--box); padding: .8rem; overflow-x: auto; font-size: 13px; line-height: 1.4; border-radius: 6px; }
.failure { border-left: 4px solid var(--bad); padding: .1rem 0 .1rem 1rem; margin: .8rem 0; }
.curves { display: grid; grid-template-columns: repeat(auto-fill, minmax(420px, 1fr)); gap: 1rem; }
figure { margin: 0; } figcaption { color: var(--dim); } svg { width: 100%; }
svg text { font-size: 11px; fill: var(--dim); }
.curve { fill: none; stroke: var(--blue); stroke-width: 1.6; } .tick { stroke: var(--line); stroke-width: .7; }
.shares { height: 26px; border-radius: 5px; } summary { cursor: pointer; color: var(--blue); }
.part-0 { fill: var(--good); background: var(--good); } .part-1 { fill: var(--bad); background: var(--bad); }
.part-2 { fill: var(--blue); background: var(--blue); } .part-3 { fill: var(--teal); background: var(--teal); }
.part-4 { fill: var(--warn); background: var(--warn); } .part-5 { fill: var(--grey); background: var(--grey); }
.part-6 { fill: var(--dim); background: var(--dim); } .part-7 { fill: var(--line); background: var(--line); }
.key { display: inline-block; width: .8rem; height: .8rem; border-radius: 3px; margin-right: .5rem; }
"""


def page(facts: Facts) -> str:
    """The whole page."""
    seen = facts.seen
    title = f"{shown(seen.state.run_id)}: {seen.name}"
    body = [
        f'<h1>{shown(seen.state.run_id)}</h1><p><span class="state {seen.name}">{seen.name}</span> '
        f"{shown(_outcome(facts))}</p>",
        *(_failure(failure) for failure in seen.chronicle.failures),
        section("What ran", table([(name, value) for name, value in text.what_ran(facts)])),
        _curves(facts),
        section("Goodput", _goodput(facts)),
        section("A step", _step(facts)),
        section("Nodes", _nodes(facts)),
        section("Attempts", _attempts(seen.chronicle.tries)),
        _plan(facts),
        section("What happened", _story(facts)),
        _folded("The recipe", facts.recipe),
        _folded("What every rank was told (runspec.json)", spec_lines(seen.spec)),
    ]
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{STYLE}</style></head>'
        f'<body>{"".join(body)}<p class="dim">{shown(seen.dir)}</p></body></html>\n'
    )


def shown(value: str) -> str:
    """Text of any origin, safe in a page."""
    return "<br>".join(escape(safe(line)) for line in printable_lines(value))


def section(title: str, inner: str) -> str:
    """A heading and what is under it, where there is anything."""
    return f"<h2>{escape(title)}</h2>{inner}" if inner else ""


def table(rows: Iterable[Sequence[str]], head: Sequence[str] = ()) -> str:
    """Cells of text."""
    top = "<tr>" + "".join(f"<th>{escape(name)}</th>" for name in head) + "</tr>" if head else ""
    lines = ["<tr>" + "".join(_cell(cell, head) for cell in row) + "</tr>" for row in rows]
    return f"<table>{top}{''.join(lines)}</table>" if lines else ""


def _cell(value: str, head: Sequence[str]) -> str:
    number = bool(head) and value[:1].isdigit()
    return f'<td class="number">{shown(value)}</td>' if number else f"<td>{shown(value)}</td>"


def _outcome(facts: Facts) -> str:
    seen = facts.seen
    of = f" of {seen.state.steps:,}" if seen.state.steps else ""
    code = f", exit code {seen.state.exit_code}" if seen.state.exit_code else ""
    tries = words.plural(len(seen.chronicle.tries), "attempt")
    share = f"{facts.goodput.share:.0%} of the time made progress"
    return f"after {words.seconds(seen.now_t)}{code}: step {seen.step:,}{of}, {tries}, {share}"


def _failure(failure: Failure) -> str:
    at = f", at step {failure.step:,}" if failure.step else ""
    detail = "\n".join(report.stack_lines(failure.stacks)) or failure.traceback or failure.log_tail
    more = _folded("stacks" if failure.stacks else "last words", detail)
    followed = (
        f'<p class="dim">{words.plural(len(failure.followers), "rank")} followed</p>'
        if failure.followers
        else ""
    )
    return (
        f'<div class="failure"><p><b>attempt {failure.attempt} failed{at}: {shown(who(failure))}</b><br>'
        f"{shown(failure.message)}</p>{followed}{more}</div>"
    )


def _folded(title: str, content: str) -> str:
    if not content.strip():
        return ""
    lines = "\n".join(escape(safe(line)) for line in printable_lines(content))
    return f"<details><summary>{escape(title)}</summary><pre>{lines}</pre></details>"


def _curves(facts: Facts) -> str:
    drawn = "".join(curve(numbers(facts.seen.points, name), label) for name, label in CURVES)
    found = table(text.results(facts))
    return section("Curves", f'{found}<div class="curves">{drawn}</div>' if drawn else found)


def _goodput(facts: Facts) -> str:
    parts, total = facts.goodput.parts, max(facts.goodput.total_s, 1e-9)
    rows = [
        f'<tr><td><span class="key part-{number}"></span>{escape(name)}</td>'
        f'<td class="number">{words.seconds(value)}</td><td class="number">{value / total:.1%}</td></tr>'
        for number, (name, value) in enumerate(parts)
        if value > 0
    ]
    return f"{shares(parts)}<table>{''.join(rows)}</table>"


def _step(facts: Facts) -> str:
    parts = [(name, mean) for name, mean, _, _ in usage.step_parts(facts.usage)]
    if not parts:
        return ""
    rows = [
        f'<tr><td><span class="key part-{number}"></span>{escape(part)}</td><td class="number">{mean}</td>'
        f'<td class="number">{share}</td><td>{shown(most)}</td></tr>'
        for number, (part, mean, share, most) in enumerate(usage.step_rows(facts.usage))
    ]
    stages = usage.imbalance(facts.usage)
    drawn = "".join(
        curve(usage.over_time(facts.usage, name), label, "second")
        for name, label in (
            ("own_s", "a rank's own seconds of a step"),
            ("communication_s", "seconds of waiting"),
        )
    )
    more = f"<p>Along the pipeline: {shown(stages)}.</p>" if stages else ""
    head = "<tr><th>part</th><th>mean of the median rank</th><th>share</th><th>most</th></tr>"
    found = f"<table>{head}{''.join(rows)}</table>"
    return f'{shares(parts)}{found}{more}<div class="curves">{drawn}</div>'


def _nodes(facts: Facts) -> str:
    found = table(usage.node_rows(facts.usage), ("figure", "mean of the median node", "most"))
    drawn = "".join(curve(usage.over_time(facts.usage, name), label, "second") for name, label in NODE_CURVES)
    return f'{found}<div class="curves">{drawn}</div>' if found else ""


def _attempts(tries: Sequence[Try]) -> str:
    rows = [
        (str(one.attempt), f"{one.ranks:,} on {words.plural(one.hosts, 'host')}", words.seconds(one.began_t),
         "" if one.stepped_t is None else words.seconds(one.stepped_t - one.began_t), f"{one.last_step:,}",
         f"{one.checkpoints} in {words.seconds(one.checkpoint_s)}",
         "" if one.failure is None else f"{who(one.failure)}: {one.failure.cause}")
        for one in tries
    ]  # fmt: skip
    return table(
        rows, ("attempt", "ranks", "began after", "to the first step", "last step", "checkpoints", "failed")
    )


def _plan(facts: Facts) -> str:
    found = table(text.plan_against_actual(facts), ("", "planned", "came", "difference"))
    odd = "".join(f"<p>{shown(line)}</p>" for line in text.straggler_lines(facts))
    return section("Plan against actual", found) + section("Stragglers in the last minute", odd)


def _story(facts: Facts) -> str:
    rows = [
        (_clock(one.time), one.text.replace(f"{facts.seen.dir}/", "")) for one in facts.seen.chronicle.said
    ]
    return table(rows)


def _clock(seconds: float) -> str:
    return time.strftime("%m-%d %H:%M:%S", time.localtime(seconds))
