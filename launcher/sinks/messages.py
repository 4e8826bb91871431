"""Which events people are told of, and in which words. Pure."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from launcher.chronicle import who
from launcher.follow import Seen
from launcher.logs import printable_lines
from launcher.report import failure_json
from launcher.words import plural

KINDS = ("stalled", "failed", "restarted", "ended")


@dataclass(frozen=True)
class Message:
    """An event that somebody wants to know of. failure: as in `status --json`, of the attempt that failed."""

    event: str  # one of KINDS
    run: str
    state: str
    attempt: int
    step: int
    message: str
    dir: str
    exit_code: int | None = None
    failure: dict[str, Any] | None = None

    def as_json(self) -> dict[str, Any]:
        """What a hook is given."""
        return {"schema": 1, **asdict(self)}


def messages(before: Seen | None, now: Seen) -> list[Message]:
    """What is to be told of a run since it was last looked at, in order.

    A failure is told when its attempt is over: until then another rank may turn out to have fallen first.
    """
    told = []
    state = now.state
    if state.stalled is not None and not (before and _stalled(before) == _stalled(now)):
        told.append(_message("stalled", now, _line(state.stalled.why)))
    earlier = sum(
        one.attempt <= state.attempts_before for one in now.chronicle.tries
    )  # of jobs before this one
    known = _over(before) if before else earlier
    for one in now.chronicle.tries[known : _over(now)]:
        if one.failure is not None:
            text = f"{who(one.failure)}: {_line(one.failure.message)}"
            failed = _message("failed", now, text, failure=failure_json(one.failure))
            told.append(replace(failed, attempt=one.attempt, step=one.failure.step))
    begun = len(before.chronicle.tries) if before else earlier
    for one in now.chronicle.tries[max(1, begun) :]:
        text = f"attempt {one.attempt} begins: {plural(one.ranks, 'rank')} on {plural(one.hosts, 'host')}"
        told.append(replace(_message("restarted", now, text), attempt=one.attempt))
    if state.over and not (before and before.state.over):
        told.append(_message("ended", now, f"{now.name} at step {now.step}", exit_code=state.exit_code))
    return told


def _message(event: str, seen: Seen, text: str, **more: Any) -> Message:
    return Message(event, seen.state.run_id, seen.name, seen.state.attempt, seen.step, text, seen.dir, **more)


def _stalled(seen: Seen) -> int | None:
    """The attempt that stalls just now."""
    return None if seen.state.stalled is None else seen.state.attempt


def _over(seen: Seen) -> int:
    """Attempts that are over."""
    return sum(one.ended_t is not None for one in seen.chronicle.tries)


def _line(text: str) -> str:
    return printable_lines(text)[0]
