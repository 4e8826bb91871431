"""`distperf logs`: rank logs of a run, chosen, prefixed, and followed while it runs."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from launcher import words
from launcher.errors import UsageError
from launcher.hostfile import host_names
from launcher.journal import Story
from launcher.logfiles import Tail
from launcher.logs import Lines, prefix
from launcher.nodeset import expand_ranks, fold_numbers
from launcher.rundir import RunDir
from launcher.state import RunState
from launcher.view import controller_lives

LOOK_S = 0.1


@dataclass(frozen=True)
class Choice:
    """Which lines are wanted; None: all."""

    ranks: frozenset[int] | None
    hosts: frozenset[str] | None
    pattern: re.Pattern[str] | None
    attempt: int | None

    @classmethod
    def of(cls, ranks: str | None, hosts: str | None, grep: str | None, attempt: int | None) -> Choice:
        """From the flags' texts. Raises HostfileError (sets) and UsageError (pattern)."""
        try:
            pattern = None if grep is None else re.compile(grep)
        except re.error as error:
            raise UsageError(f"--grep {grep!r}: {error}") from None
        return cls(
            None if ranks is None else frozenset(expand_ranks(ranks)),
            None if hosts is None else frozenset(host_names(hosts)),
            pattern,
            attempt,
        )


class _RankLog:
    """One rank's log, as it is printed."""

    def __init__(self, path: Path, start: str, choice: Choice, raw: bool) -> None:
        self._tail = Tail(path)
        self._lines = Lines()
        self._start = "" if raw else start
        self._pattern = choice.pattern
        self._as_it_is = raw and choice.pattern is None

    def new(self) -> Iterator[bytes]:
        """All that has come since the last call, in pieces."""
        while data := self._tail.new():  # a log may be longer than one read
            yield data if self._as_it_is else self._chosen(self._lines.feed(data))

    def rest(self) -> bytes:
        """A last line without an end."""
        return self._chosen(self._lines.rest())

    def _chosen(self, lines: Iterable[str]) -> bytes:
        wanted = [line for line in lines if self._pattern is None or self._pattern.search(line)]
        return "".join(f"{self._start}{line}\n" for line in wanted).encode("utf-8", "replace")


def read(run: RunDir, choice: Choice, follow: bool, raw: bool) -> Iterator[bytes]:
    """The chosen output, rank by rank; then, with `follow`, what comes, new attempts too, until the run ends.

    Raises UsageError when the choice names nothing that is there.
    """
    story = Story(run)
    attempt = choice.attempt or story.state.attempt
    logs = _logs(run, story.state, choice, attempt, raw)
    while True:
        over = not follow or story.state.over or not controller_lives(run, story.state)
        newest = choice.attempt or story.state.attempt
        yield from _pieces(
            logs, last=over or newest != attempt
        )  # an attempt's logs are complete when the next begins
        if newest != attempt:
            attempt = newest
            logs = _logs(run, story.state, choice, attempt, raw)
        elif over:
            return
        else:
            time.sleep(LOOK_S)
        for _event in story.news():
            pass


def _pieces(logs: list[_RankLog], last: bool) -> Iterator[bytes]:
    for log in logs:
        yield from filter(None, log.new())
        if last and (rest := log.rest()):
            yield rest


def _logs(run: RunDir, state: RunState, choice: Choice, attempt: int, raw: bool) -> list[_RankLog]:
    if choice.attempt is not None and choice.attempt not in run.attempts():
        known = fold_numbers(run.attempts()) or "none yet"
        raise UsageError(f"run {state.run_id} has no logs of attempt {choice.attempt}; there are: {known}")
    hosts = state.rank_hosts.get(attempt) or tuple(rank.host for rank in state.ranks)
    chosen = [
        (rank, host)
        for rank, host in enumerate(hosts)
        if (choice.ranks is None or rank in choice.ranks)
        and (choice.hosts is None or host in choice.hosts or host.rpartition(":")[0] in choice.hosts)
    ]
    if not chosen:
        raise UsageError(f"no such rank: run {state.run_id} has {words.ranks(range(len(hosts)))}"
                         f" on {', '.join(dict.fromkeys(hosts))}")  # fmt: skip
    widths = max(map(len, hosts)), len(str(len(hosts) - 1))
    return [_RankLog(run.log(attempt, r), prefix(host, r, *widths), choice, raw) for r, host in chosen]
