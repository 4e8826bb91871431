"""`distperf attach`: a run led by another process, shown as its `launch` would; reads nothing but the run's folder."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from distperf import contract
from launcher import events
from launcher.console import Console
from launcher.errors import UsageError
from launcher.journal import Story, last_metrics
from launcher.logfiles import Tail
from launcher.rundir import RunDir
from launcher.screen import Screen
from launcher.state import RunState
from launcher.stop import ask_to_stop
from launcher.summary import progress_line
from launcher.view import closing_lines, controller_lives, public_state

LOOK_S = 0.1
LINES_BEFORE = 20  # of what was written before, over all ranks

Say = Callable[[str], None]


class Watch:
    """Shows on a screen what the run's folder tells, each thing once."""

    def __init__(self, run: RunDir, story: Story, screen: Screen) -> None:
        self._run = run
        self._story = story
        self._screen = screen
        self._metrics = last_metrics(run)
        self._logs = self._open_logs()
        for tail in self._logs.values():
            tail.skip(max(1, LINES_BEFORE // len(self._logs)))
        screen.metrics(self._metrics)
        screen.state(story.state)

    def look(self) -> None:
        """Show what has come since the last look. A run that has ended is shown whole: its end is written last."""
        for event in self._story.news():
            if isinstance(event, events.AttemptBegan):
                self._show_logs()  # of the attempt before: they are complete
                self._logs = self._open_logs()
            elif isinstance(event, events.Noted):
                self._screen.note(event.text)
            elif isinstance(event, events.Restarting):
                self._screen.note(event.reason)
            self._screen.state(self._story.state)
        self._show_logs()
        metrics = last_metrics(self._run)
        if metrics != self._metrics and metrics.get("attempt") == self._story.state.attempt:
            self._metrics = metrics
            self._screen.metrics(metrics)
        self._screen.state(self._story.state)

    def _open_logs(self) -> dict[tuple[str, int], Tail]:
        state = self._story.state
        return {(r.host, r.rank): Tail(self._run.log(state.attempt, r.rank)) for r in state.ranks}

    def _show_logs(self) -> None:
        for (host, rank), tail in self._logs.items():
            while data := tail.new():
                self._screen.log(host, rank, data)


def attach(run: RunDir, on_interrupt: str, say: Say) -> int:
    """Show the run until it ends, and return its exit code; or until the user detaches: 130, whatever becomes of it.

    on_interrupt: detach, stop, or ask (which detaches where there is no terminal to ask on).
    """
    story = Story(run)
    if not story.state.over:
        say(headline(story.state, run))
        console = Console(quiet=False)
        try:
            if not _follow(run, story, console, on_interrupt, say):
                say(f"detached: run {run.run_id} goes on, unwatched")
                return contract.EXIT_INTERRUPTED
        finally:
            console.close()
    for line in closing_lines(run, story.state):
        say(line)
    state = story.state
    if state.exit_code is not None:
        return state.exit_code
    lease_s = state.policy.lease_s
    say(f"the run is lost: its controller has died; its ranks end themselves within {lease_s:.0f} s")
    return contract.EXIT_FAILED


def headline(state: RunState, run: RunDir) -> str:
    """Where the run is, as it is found."""
    last = {**last_metrics(run)}
    where = progress_line(state, last if last.get("attempt") == state.attempt else {})
    name = public_state(state, alive=True)
    return f"run {state.run_id}: {name}, attempt {state.attempt}" + ("" if where == name else f", {where}")


def _follow(run: RunDir, story: Story, console: Console, on_interrupt: str, say: Say) -> bool:
    """Show the run until it has ended or is lost; False when the user leaves it before."""
    watch = Watch(run, story, console)
    with _interrupts() as interrupts:
        while True:
            alive = controller_lives(run, story.state)
            watch.look()
            if story.state.over or not alive:
                return True
            if interrupts:
                interrupts.clear()
                if on_interrupt == "ask":
                    console.clear()
                    on_interrupt = _ask()
                if on_interrupt == "detach":
                    return False
                _stop(run, say)
            time.sleep(LOOK_S)


def _stop(run: RunDir, say: Say) -> None:
    try:
        ask_to_stop(run)
    except UsageError as error:
        say(f"distperf: {error}")


def _ask() -> str:
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return "detach"
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        while True:
            print("\ndetach (d) or stop (s)? ", end="", file=sys.stderr, flush=True)
            answer = sys.stdin.readline()
            if not answer or answer.strip() in ("d", "detach"):
                return "detach"
            if answer.strip() in ("s", "stop"):
                return "stop"
    except KeyboardInterrupt:
        return "detach"
    finally:
        signal.signal(signal.SIGINT, handler)


@contextmanager
def _interrupts() -> Iterator[list[int]]:
    """Ctrl-C is noted, not raised: nothing is shown by half or twice."""
    noted: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _frame: noted.append(number))
    try:
        yield noted
    finally:
        signal.signal(signal.SIGINT, before)
