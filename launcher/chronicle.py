"""What became of a run, for people: its attempts, and sentences about what happened. Folded from the journal. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from launcher import events
from launcher.events import Event
from launcher.logs import printable_lines
from launcher.nodeset import fold
from launcher.state import Failure, RunState
from launcher.words import plural

SAID_KEPT = 500  # sentences; a run that goes on for months says more than anybody reads


@dataclass(frozen=True)
class Said:
    """A sentence about something that happened. tone: text | good | warn | bad. time: wall clock, in seconds."""

    time: float
    text: str
    tone: str = "text"


@dataclass(frozen=True)
class Try:
    """One attempt. Times are seconds since the run was created; None: it has not come to that."""

    attempt: int
    began_t: float
    ranks: int
    hosts: int
    stepped_t: float | None = None  # when the first step was heard of, or training began
    failed_t: float | None = None
    ended_t: float | None = None
    first_step: int | None = None  # the first that was heard of
    last_step: int = 0
    checkpoints: int = 0
    checkpoint_s: float = 0.0  # rank 0 in its checkpoint phase
    paused_t: float | None = None  # rank 0 is in its checkpoint phase since
    failure: Failure | None = None


@dataclass(frozen=True)
class Chronicle:
    """The story so far. left_out: older sentences that are not kept.

    A run that goes on in a requeued job is created again, and its clock begins anew: shift_s is added to it here.
    """

    created_time: float = 0.0
    shift_s: float = 0.0
    tries: tuple[Try, ...] = ()
    said: tuple[Said, ...] = ()
    left_out: int = 0

    @property
    def failures(self) -> tuple[Failure, ...]:
        """The first failure of each attempt that failed, in order."""
        return tuple(one.failure for one in self.tries if one.failure is not None)


def after(past: Chronicle, time: float, before: RunState | None, event: Event, state: RunState) -> Chronicle:
    """The story with one more event. before, state: the run before and after it; time: when it was written down."""
    if isinstance(event, events.RunCreated):
        past = _created_at(past, time)
    shifted = dataclasses.replace(event, t=event.t + past.shift_s) if past.shift_s else event
    tries = _tries(past.tries, shifted, state)
    sentences = [Said(time, *sentence) for sentence in _sentences(before, event, state)]
    if not sentences and tries is past.tries:
        return past
    said = (*past.said, *sentences)
    dropped = max(0, len(said) - SAID_KEPT)
    return dataclasses.replace(past, tries=tries, said=said[dropped:], left_out=past.left_out + dropped)


def _created_at(past: Chronicle, time: float) -> Chronicle:
    if not past.created_time:
        return Chronicle(created_time=time)
    return dataclasses.replace(past, shift_s=time - past.created_time)


def _tries(past: tuple[Try, ...], event: Event, state: RunState) -> tuple[Try, ...]:
    if isinstance(event, events.AttemptBegan):
        return (*past, Try(event.attempt, event.t, len(state.ranks), len(state.hosts)))
    if not past or getattr(event, "attempt", past[-1].attempt) != past[-1].attempt:
        return past
    last = past[-1]
    now = _with(last, event, state)
    return past if now is last else (*past[:-1], now)


def _with(last: Try, event: Event, state: RunState) -> Try:
    if isinstance(event, events.Progressed):
        return _progressed(last, event)
    if isinstance(event, events.RankReported) and event.rank == 0:
        last = _reported(last, event)
    if state.failure is not None and state.failure is not last.failure:
        failed_t = event.t if last.failed_t is None else last.failed_t
        last = dataclasses.replace(last, failure=state.failure, failed_t=failed_t)
    if isinstance(event, (events.Restarting, events.Ended)) and last.ended_t is None:
        return dataclasses.replace(last, ended_t=event.t)
    return last


def _progressed(last: Try, event: events.Progressed) -> Try:
    steps = event.steps.values()
    if not steps or max(steps) <= last.last_step:
        return last
    first = min(steps) if last.first_step is None else last.first_step
    stepped_t = event.t if last.stepped_t is None else last.stepped_t
    return dataclasses.replace(last, first_step=first, last_step=max(steps), stepped_t=stepped_t)


def _reported(last: Try, event: events.RankReported) -> Try:
    kind, phase = event.record.get("kind"), event.record.get("phase")
    if kind == "event" and event.record.get("event") == "checkpoint":
        return dataclasses.replace(last, checkpoints=last.checkpoints + 1)
    if kind not in ("phase", "done"):
        return last
    if last.paused_t is not None:
        last = dataclasses.replace(
            last, checkpoint_s=last.checkpoint_s + event.t - last.paused_t, paused_t=None
        )
    if phase == "checkpoint":
        return dataclasses.replace(last, paused_t=event.t)
    if phase == "train" and last.stepped_t is None:
        return dataclasses.replace(last, stepped_t=event.t)
    return last


Sentence = tuple[str, str]  # text and tone


def _sentences(before: RunState | None, event: Event, state: RunState) -> list[Sentence]:
    told = [] if (sentence := _of_event(event, state)) is None else [sentence]
    if before is None:
        return told
    if state.failure is not None and state.failure.rank != getattr(before.failure, "rank", -1):
        told.append((f"{who(state.failure)}: {_line(state.failure.message)}", "bad"))
    if state.state == "running" and before.state == "starting":
        told.append((f"{plural(len(state.ranks), 'rank')} run", "text"))
    if state.state == "stopping" and before.state != "stopping":
        told.append(("the ranks are told to end", "text"))
    return told


def _of_event(event: Event, state: RunState) -> Sentence | None:
    """What an event says by itself."""
    if isinstance(event, events.RankReported):
        return _of_record(event)
    speak = _SPEAK.get(type(event))
    return None if speak is None else speak(event, state)


def _created(_event: events.RunCreated, state: RunState) -> Sentence:
    return f"created: {plural(len(state.ranks), 'rank')} on {plural(len(state.hosts), 'host')}", "text"


def _ended(event: events.Ended, _state: RunState) -> Sentence:
    return (
        f"the run has ended: {event.state}, exit code {event.exit_code}",
        "bad" if event.exit_code else "good",
    )


def _node_lost(event: events.NodeLost, state: RunState) -> Sentence | None:
    told_as_failure = (
        state.failure is not None and state.failure.rank is None and state.failure.host == event.host
    )
    return None if told_as_failure else (f"{event.host} is lost: {_line(event.why)}", "bad")


# Events that say something by themselves; others are told of by what they change.
_SPEAK: dict[type[Event], Callable[[Any, RunState], Sentence | None]] = {
    events.RunCreated: _created,
    events.Ended: _ended,
    events.NodeLost: _node_lost,
    events.AttemptBegan: lambda event, _: (f"attempt {event.attempt} begins", "text"),
    events.Stalled: lambda event, _: (
        f"stalled: {_line(event.why)}; the stacks of all ranks are taken",
        "warn",
    ),
    events.LinkLost: lambda event, _: (f"the link to {event.host} is gone: {_line(event.why)}", "warn"),
    events.LinkBack: lambda event, _: (f"the link to {event.host} is back", "good"),
    events.NodeBack: lambda event, _: (f"{event.host} has a fresh agent", "good"),
    events.ReopenFailed: lambda event, _: (f"{event.host} cannot be reached: {_line(event.why)}", "warn"),
    events.Placed: lambda event, _: (f"ranks are placed anew: {fold(filter(None, event.places))}", "text"),
    events.Unplaceable: lambda event, _: (f"no placement: {_line(event.why)}", "bad"),
    events.Restarting: lambda event, _: (_line(event.reason), "warn"),
    events.Interrupted: lambda event, _: (f"asked to end ({event.signal})", "warn"),
    events.Noted: lambda event, _: (_line(event.text), "text"),
}


def _of_record(event: events.RankReported) -> Sentence | None:
    """Events that ranks tell of themselves: checkpoints, where they went on from."""
    record = event.record
    if record.get("kind") != "event":
        return None
    name, path = str(record.get("event")), str(record.get("path") or "")
    step = record.get("step")
    if name == "checkpoint":
        return f"checkpoint of step {step}: {_line(path)}", "good"
    if name == "resume" and record.get("memory"):
        return f"resumed from memory, step {step}", "text"
    if name == "resume":
        return f"resumed after step {step} from {_line(path)}", "text"
    detail = record.get("problem") or path or ("" if step is None else f"step {step}")
    return f"{_line(name)}: {_line(str(detail))}", "warn" if name.endswith(("damaged", "failed")) else "text"


def who(failure: Failure) -> str:
    """Who failed: a rank on its host, or the host itself."""
    return f"rank {failure.rank} on {failure.host}" if failure.rank is not None else failure.host


def _line(text: str) -> str:
    """The first line, safe on a terminal."""
    lines = printable_lines(text)
    return lines[0] if lines else ""
