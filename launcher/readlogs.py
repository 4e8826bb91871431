"""`distperf logs`: rank logs of a run, chosen, prefixed, and followed while it runs."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from launcher.errors import UsageError
from launcher.hostfile import host_names
from launcher.journal import replay
from launcher.logs import Lines, prefix
from launcher.nodeset import expand_ranks, fold_numbers
from launcher.rundir import RunDir
from launcher.state import RunState
from launcher.view import controller_lives

LOOK_S = 0.1
READ_BYTES = 1 << 20


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


class _Tail:
    """One rank's log and how far it was read."""

    def __init__(self, path: Path, start: str) -> None:
        self._path = path
        self._start = start
        self._offset = 0
        self._lines = Lines()

    def new(self, choice: Choice, raw: bool, last: bool) -> bytes:
        """What has come since the last call; with `last`, a line without an end too."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                data = file.read(READ_BYTES)
        except FileNotFoundError:
            return b""
        self._offset += len(data)
        if raw and choice.pattern is None:
            return data
        lines = list(self._lines.feed(data))
        if last and len(data) < READ_BYTES:
            lines += self._lines.rest()
        start = "" if raw else self._start
        wanted = [line for line in lines if choice.pattern is None or choice.pattern.search(line)]
        return "".join(f"{start}{line}\n" for line in wanted).encode("utf-8", "replace")


def read(run: RunDir, choice: Choice, follow: bool, raw: bool) -> Iterator[bytes]:
    """The chosen output, rank by rank; then, with `follow`, what comes, new attempts too, until the run ends.

    Raises UsageError when the choice names nothing that is there.
    """
    state = replay(run)
    attempt = choice.attempt or state.attempt
    tails = _tails(run, state, choice, attempt)
    while True:
        over = state.over or not controller_lives(run, state)
        again = True
        while again:  # a log may be longer than one read
            pieces = [tail.new(choice, raw, last=over or not follow) for tail in tails]
            again = any(pieces)
            yield from (piece for piece in pieces if piece)
        if not follow or over:
            return
        time.sleep(LOOK_S)
        state = replay(run)
        if choice.attempt is None and state.attempt != attempt:
            attempt = state.attempt
            tails = _tails(run, state, choice, attempt)


def _tails(run: RunDir, state: RunState, choice: Choice, attempt: int) -> list[_Tail]:
    if choice.attempt is not None and choice.attempt not in run.attempts():
        known = fold_numbers(run.attempts()) or "none yet"
        raise UsageError(f"run {state.run_id} has no logs of attempt {choice.attempt}; there are: {known}")
    chosen = [
        rank
        for rank in state.ranks
        if (choice.ranks is None or rank.rank in choice.ranks)
        and (
            choice.hosts is None or rank.host in choice.hosts or rank.host.rpartition(":")[0] in choice.hosts
        )
    ]
    if not chosen:
        raise UsageError(f"no such rank: run {state.run_id} has ranks 0-{len(state.ranks) - 1}"
                         f" on {', '.join(state.hosts)}")  # fmt: skip
    widths = max(map(len, state.hosts)), len(str(len(state.ranks) - 1))
    return [_Tail(run.log(attempt, r.rank), prefix(r.host, r.rank, *widths)) for r in chosen]
