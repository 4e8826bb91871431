"""Failures of a run: the first of each attempt, its stacks folded. Pure."""

from __future__ import annotations

from launcher import chronicle, words
from launcher.dashboard.lines import Line, Look, Span, line, rule, safe, wrap
from launcher.dashboard.overview import said_line
from launcher.follow import Seen
from launcher.logs import printable_lines
from launcher.report import TAIL_LINES, stack_lines
from launcher.state import Failure


def events(seen: Seen, look: Look, *, opened: bool) -> list[Line]:
    """Failures, the first one first, then all that happened, newest first. opened: with stacks and last lines."""
    lines: list[Line] = []
    for failure in seen.chronicle.failures:
        lines += failure_block(failure, look, opened=opened)
    if not lines:
        lines = [line(Span(" no failures", "good"))]
    lines += [(), rule("what happened, newest first", look)]
    lines += [said_line(one, seen, look) for one in reversed(seen.chronicle.said)]
    if seen.chronicle.left_out:
        lines.append(line(Span(f" and {seen.chronicle.left_out:,} more before, in events.jsonl", "dim")))
    return lines


def failure_block(failure: Failure, look: Look, *, opened: bool) -> list[Line]:
    """One attempt's first failure: who, why, how it was found, and what it said last."""
    at = f", at step {failure.step:,}" if failure.step else ""
    lines = [rule(f"attempt {failure.attempt} failed: {failure.cause}{at}", look)]
    target = f"rank {failure.rank}" if failure.rank is not None else ""
    message = f"{chronicle.who(failure)}: {failure.message}"
    for text in printable_lines(message):
        lines += [
            line(Span(f" {piece}", "bad", target))
            for piece in wrap(safe(text, ascii=look.ascii), look.width - 2)
        ]
    if failure.followers:
        lines.append(line(Span(f" {words.ranks(failure.followers)} followed", "dim")))
    more = _detail(failure)
    if more and opened:
        lines += [line(Span(f" {safe(text, ascii=look.ascii)}")) for text in more]
    elif more:
        lines.append(line(Span(f" {len(more)} lines of stacks and output: Enter shows them", "dim", "fold")))
    return lines


def _detail(failure: Failure) -> list[str]:
    if failure.stacks:
        return stack_lines(failure.stacks)
    text = failure.traceback or failure.log_tail
    return [f"| {one}" for one in printable_lines(text)[-TAIL_LINES:]] if text else []
