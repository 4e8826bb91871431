"""What a run came to, in words: first failure first. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from launcher import words
from launcher.logs import printable_lines
from launcher.state import Failure, RunState

TAIL_LINES = 12


def report(
    state: RunState,
    folder: Path,
    first: dict[str, Any] | None,
    last: dict[str, Any],
    advice: Sequence[str] = (),
) -> list[str]:
    """The lines printed when a run ends. first, last: its first and newest line of metrics, if any.

    `advice`: what can be done about the failure.
    """
    lines = []
    if state.first_failure is not None and state.state != "finished":
        lines += [*failure_lines(state.first_failure), *advice]
    lines.append(headline(state))
    if last:
        lines.append("  " + _metrics_line(first or last, last))
    memory = memory_line(state)
    if memory:
        lines.append("  " + memory)
    if state.checkpoint:
        lines.append(f"  checkpoint  {state.checkpoint}")
    lines.append(f"  folder      {folder}")
    for host, unsent in state.unsent.items():
        what = f"{words.size(unsent.num_bytes)} of logs were not waited for"
        lines.append(f"  on {host}  {what}; they are in {unsent.folder} there")
    if state.state in ("failed", "stopped") and state.checkpoint:
        lines.append(f"  go on with  distperf launch {folder / 'recipe.yaml'} --resume {folder}")
    return lines


def headline(state: RunState) -> str:
    """One sentence: how it ended, how far it came, how long it took."""
    how = {"finished": "finished", "failed": "failed", "stopped": "was stopped"}.get(state.state, state.state)
    code = "" if not state.exit_code else f" (exit code {state.exit_code})"
    steps = f": {_steps(state)}" if state.steps or state.step else ""
    attempts = "" if state.attempt <= 1 else f", {state.attempt} attempts"
    return f"run {state.run_id} {how}{code}{steps} in {words.seconds(state.t)}{attempts}"


def _steps(state: RunState) -> str:
    if state.steps and state.step < state.steps:
        return f"step {state.step} of {state.steps}"
    return words.plural(state.step, "step")


def _metrics_line(first: dict[str, Any], last: dict[str, Any]) -> str:
    parts = []
    if isinstance(last.get("loss"), (int, float)):
        start = f"{first['loss']:.4f} -> " if isinstance(first.get("loss"), (int, float)) else ""
        parts.append(f"loss {start}{last['loss']:.4f}")
    if isinstance(last.get("tokens_per_s"), (int, float)):
        parts.append(f"{last['tokens_per_s']:,.0f} tokens/s")
    if isinstance(last.get("peak_bytes"), (int, float)):
        parts.append(f"peak {words.size(last['peak_bytes'])} a rank")
    return "   ".join(parts)


def memory_line(state: RunState) -> str:
    """Bytes of model state on the rank that holds most, by kind."""
    known = [rank.memory for rank in state.ranks if rank.memory]
    if not known:
        return ""
    most = max(known, key=lambda memory: sum(memory.values()))
    kinds = ("parameters", "gradients", "optimizer")
    parts = [f"{kind} {words.size(most[f'{kind}_bytes'])}" for kind in kinds if f"{kind}_bytes" in most]
    return "memory      " + ", ".join(parts) + " a rank"


def failure_lines(failure: Failure) -> list[str]:
    """Who failed, why, its last words, and who followed."""
    who = f"rank {failure.rank} on {failure.host}" if failure.rank is not None else failure.host
    pid = f" (pid {failure.pid})" if failure.pid else ""
    at = f" at step {failure.step}" if failure.step else ""
    message = "\n    ".join(printable_lines(failure.message))
    lines = [f"first failure: {who}{pid}{at}: {message}"]
    lines += stack_lines(failure.stacks)
    traceback = None if failure.stacks else failure.traceback
    shown = traceback or failure.log_tail
    if shown:
        lines.append("  traceback:" if traceback else "  its last lines:")
        lines += [f"    | {line}" for line in printable_lines(shown)[-TAIL_LINES:]]
    if failure.followers:
        lines.append(f"  {words.ranks(failure.followers)} followed")
    return lines


def stack_lines(groups: Sequence[dict[str, Any]]) -> list[str]:
    """What the ranks of a stalled run were doing, equal ones once: innermost frame first."""
    lines = []
    for group in groups:
        where = group["where"] + (f", {group['collective']}" if group["collective"] else "")
        lines.append(
            f"  {'rank' if group['ranks'].isdigit() else 'ranks'} {group['ranks']}: {printable_lines(where)[0]}"
        )
        lines += [f"    | {line}" for line in printable_lines(group["stack"])[:TAIL_LINES] if line]
    return lines


def failure_json(failure: Failure | None) -> dict[str, Any] | None:
    """FAILURE of `status --json`."""
    if failure is None:
        return None
    value = dataclasses.asdict(failure)
    value["followers"] = sorted(failure.followers)
    value["stacks"] = list(failure.stacks)
    del value["retry"]
    return value
