"""The first view: is it going, how fast, how far, what went wrong. Pure."""

from __future__ import annotations

import statistics
import time
from dataclasses import replace

from launcher import chronicle, words
from launcher.alarms import alarms
from launcher.chronicle import Said
from launcher.dashboard import parts
from launcher.dashboard.lines import Line, Look, Span, beside, cut, fit, gauge, line, rule, safe
from launcher.dashboard.plot import plot
from launcher.follow import Seen
from launcher.report import memory_line
from launcher.series import numbers

TONES = {
    "queued": "dim", "starting": "accent", "running": "good", "stalled": "bad", "restarting": "warn",
    "finished": "good", "failed": "bad", "stopped": "warn", "lost": "bad",
}  # fmt: skip


def header(seen: Seen, look: Look) -> Line:
    """What stands above every view: name, state, step of steps."""
    state = seen.state
    of = f" of {state.steps:,}" if state.steps else ""
    step = f"step {seen.step:,}{of}" if seen.step or state.steps else ""
    right = "  ".join(filter(None, (step, f"attempt {state.attempt}" if state.attempt > 1 else "")))
    room = look.width - len(right) - len(seen.name) - 4
    name = cut(safe(state.run_id, ascii=look.ascii), max(8, room), ascii=look.ascii)
    spans = line(
        Span(f" {name} ", "title"), Span(f"{seen.name.upper()}", TONES.get(seen.name, "text")), Span("  ")
    )
    used = sum(len(span.text) for span in spans)
    blank = max(0, look.width - used - len(right) - 1)
    return fit((*spans, Span(" " * blank), Span(right), Span(" ")), look.width)


def overview(seen: Seen, look: Look) -> list[Line]:
    """The whole view, made for the room it has."""
    top = [*_state_lines(seen, look), _progress(seen, look), *_figures(seen)]
    events = min(max(3, look.height // 4), len(seen.chronicle.said)) if look.height >= 16 else 2
    plots = look.height - len(top) - events - 2
    lines = [fit(one, look.width) for one in top]
    if plots >= 4:
        lines += _plots(seen, replace(look, height=plots))
    lines.append(rule("what happened", look))
    said = seen.chronicle.said[-events:] if events else ()
    return [*lines, *(said_line(one, seen, look) for one in said)]


def _state_lines(seen: Seen, look: Look) -> list[Line]:
    state = seen.state
    restarts = max(0, state.attempt - state.attempts_before - 1)
    facts = [
        words.seconds(seen.now_t),
        f"attempt {state.attempt}, {restarts} of {words.plural(state.policy.max_restarts, 'restart')}",
        f"{words.plural(len(state.ranks), 'rank')} on {words.plural(len(state.hosts), 'host')}",
    ]
    lines = [line(Span(f" {seen.name:<11}", TONES.get(seen.name, "text")), "   ".join(facts))]
    why = _why(seen)
    odd = "; ".join(alarms(seen.state, seen.recent, seen.points, seen.figures))
    if odd:
        lines.append(
            line(Span(" " + cut(safe(odd, ascii=look.ascii), look.width - 2, ascii=look.ascii), "warn"))
        )
    if why:
        text = cut(safe(why, ascii=look.ascii), look.width - 2, ascii=look.ascii)
        lines.append(line(Span(f" {text}", TONES.get(seen.name, "text"))))
    return lines


def _why(seen: Seen) -> str:
    """What the state means just now, where its name does not say it all."""
    state = seen.state
    if seen.name == "lost":
        return f"the controller has died; the ranks end themselves within {state.policy.lease_s:.0f} s"
    if seen.name == "queued":
        return "the hosts are ready; no attempt has begun yet"
    if seen.name == "starting":
        phases = sorted({rank.phase for rank in state.ranks if rank.phase})
        there = sum(rank.pid is not None for rank in state.ranks)
        return f"{there:,} of {words.plural(len(state.ranks), 'rank')} started" + (
            f" ({', '.join(phases)})" if phases else ""
        )
    if seen.name == "stalled" and state.stalled is not None:
        return state.stalled.why
    if state.failure is not None or (state.first_failure is not None and state.state == "failed"):
        failure = state.failure or state.first_failure
        assert failure is not None
        return f"{chronicle.who(failure)}: {failure.message.splitlines()[0] if failure.message else failure.cause}"
    return ""


def _progress(seen: Seen, look: Look) -> Line:
    steps = seen.state.steps
    if not steps:
        return line(Span(" step       ", "dim"), f"{seen.step:,}" if seen.step else "none reported")
    share = seen.step / steps
    left = time_left(seen)
    text = f" {share:6.1%}" + (f"   {words.seconds(left)} left" if left is not None else "")
    label = f"{seen.step:,} of {steps:,} "
    room = max(5, look.width - 13 - len(label) - max(26, len(text)))
    return line(Span(" step       ", "dim"), label, *gauge(share, room, look), text)


def recent_step_s(seen: Seen) -> float | None:
    """Seconds a step, lately: from metrics, or from the steps of all ranks where metrics do not say."""
    known = [s for _, s in numbers(seen.recent, "step_s")]
    if known:
        return statistics.median(known)
    found = [s for rank in seen.state.ranks if (s := seen.tempo.step_s(rank.rank)) is not None]
    return statistics.median(found) if found else None


def time_left(seen: Seen) -> float | None:
    """Seconds to the last step at the speed of late, while the run runs."""
    step_s = recent_step_s(seen)
    if not seen.state.steps or step_s is None or seen.over or not seen.step:
        return None
    return (seen.state.steps - seen.step) * step_s


_FIGURES = (("loss", "loss {:.4f}"), ("grad_norm", "grad norm {:.3g}"), ("lr", "lr {:.3g}"),
            ("loss_scale", "loss scale {:.3g}"))  # fmt: skip
_SPEEDS = (("tokens_per_s", "{:,.0f} tokens/s"), ("mfu", "MFU {:.1%}"), ("step_s", "{:.3g} s a step"))


def _figures(seen: Seen) -> list[Line]:
    last = seen.last
    lines = []
    for label, known in (("now", _FIGURES), ("speed", _SPEEDS)):
        said = [form.format(last[name]) for name, form in known if _number(last.get(name))]
        if label == "speed" and _number(last.get("peak_bytes")):
            said.append(f"peak {words.size(last['peak_bytes'])} a rank")
        if said:
            lines.append(line(Span(f" {label:<11}", "dim"), "   ".join(said)))
    for label, text in (("a step", parts.split(parts.middle(seen.figures))), ("stages", parts.stages(seen))):
        if text:
            lines.append(line(Span(f" {label:<11}", "dim"), text))
    memory = memory_line(seen.state).removeprefix("memory").removesuffix("a rank").strip()
    if memory:
        lines.append(line(Span(" memory     ", "dim"), memory))
    if seen.state.checkpoint:
        lines.append(line(Span(" checkpoint ", "dim"), safe(inside(seen.state.checkpoint, seen))))
    return lines


def _number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _plots(seen: Seen, look: Look) -> list[Line]:
    """Loss and speed next to each other."""
    half = (look.width - 2) // 2
    small = replace(look, width=half, height=look.height - 1)
    speed, title = numbers(seen.points, "tokens_per_s"), "tokens/s"
    if not speed:
        speed, title = numbers(seen.points, "step_s"), "seconds a step"
    left = [rule("loss", small), *plot(numbers(seen.points, "loss"), small)]
    right = [rule(title, small), *plot(speed, small, "good")]
    return beside(left, right, half)


def said_line(said: Said, seen: Seen, look: Look) -> Line:
    """A sentence with the time of day it was said."""
    when = time.strftime("%H:%M:%S", time.localtime(said.time))
    text = cut(safe(inside(said.text, seen), ascii=look.ascii), look.width - 11, ascii=look.ascii)
    return line(Span(f" {when}  ", "dim"), Span(text, said.tone))


def inside(text: str, seen: Seen) -> str:
    """Paths in the run's folder, relative to it."""
    return text.replace(f"{seen.dir}/", "")
