"""events.jsonl and metrics.jsonl: appended by the controller, read by everybody. JSON lines, no locks (NFS, Lustre)."""

from __future__ import annotations

import itertools
import json
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from launcher import bookmark, chronicle, supervise, tempo
from launcher.bookmark import Bookmark
from launcher.chronicle import Chronicle
from launcher.errors import RunFolderError
from launcher.events import Event, Progressed, RunCreated, from_line, to_line
from launcher.rundir import RunDir, write_atomic
from launcher.state import RunState
from launcher.tempo import Tempo


class Journal:
    """The controller's pen. Each line is written whole and handed to the system at once."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab", buffering=0)

    def write(self, event: Event) -> None:
        """Append one event with the wall time. Raises OSError (a full disk)."""
        line = {"time": round(time.time(), 3), **to_line(event)}
        self._file.write(json.dumps(line).encode() + b"\n")

    def touch(self) -> None:
        """Renew the file's time: to readers on other machines, the sign that the controller lives."""
        os.utime(self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class Metrics:
    """metrics.jsonl: one line a step, of the attempt whose weights live on.

    A restart goes back to a checkpoint and does some steps again; their earlier lines move to
    metrics.superseded.jsonl, so that the curve reads as if nothing had happened and nothing is lost.
    """

    def __init__(self, run: RunDir) -> None:
        self._run = run
        self._file = run.metrics.open("ab", buffering=0)
        self._last_step = int(last_metrics(run).get("step") or 0)  # of an earlier job of the same run

    def write(self, line: dict[str, Any]) -> None:
        """Append one step's line. Raises OSError."""
        step = line.get("step")
        if isinstance(step, int):
            if step <= self._last_step:
                self._supersede(step)
            self._last_step = step
        self._file.write(json.dumps(line).encode() + b"\n")

    def _supersede(self, step: int) -> None:
        lines = self._run.metrics.read_bytes().splitlines(keepends=True)
        steps = [json.loads(line).get("step") for line in lines]
        first = next((i for i, s in enumerate(steps) if isinstance(s, int) and s >= step), len(lines))
        keep, old = lines[:first], lines[first:]
        self._file.close()
        with self._run.superseded_metrics.open("ab") as file:
            file.writelines(old)
        write_atomic(self._run.metrics, b"".join(keep).decode())
        self._file = self._run.metrics.open("ab", buffering=0)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Every whole line that is a JSON object; a last line still being written is left out."""
    for raw in _whole_lines(path, 0):
        line = _object(raw)
        if line is not None:
            yield line


def _whole_lines(path: Path, start: int) -> Iterator[bytes]:
    try:
        with path.open("rb") as file:
            file.seek(start)
            yield from itertools.takewhile(lambda raw: raw.endswith(b"\n"), file)
    except FileNotFoundError:
        return
    except OSError as error:
        raise RunFolderError(f"cannot read {path}: {error.strerror}") from None


def _object(raw: bytes) -> dict[str, Any] | None:
    try:
        line = json.loads(raw)
    except ValueError:
        return None
    return line if isinstance(line, dict) else None


class Story:
    """What a run's journal tells so far: its state, chronicle and tempo. Starts from the bookmark where there is one.

    Raises RunFolderError when there is no beginning to it.
    """

    def __init__(self, run: RunDir) -> None:
        self._path = run.events
        self._read_bytes = 0
        self._state: RunState | None = None
        self._steps: list[Progressed] = []  # that the state has not taken in yet
        self.chronicle, self.tempo = Chronicle(), Tempo()
        mark = bookmark.load(run) if run.bookmark.exists() else None
        if mark is not None:
            self._read_bytes, self._state = mark.offset, mark.state
            self.chronicle, self.tempo = mark.chronicle, mark.tempo
        for _event in self.news():
            pass
        if self._state is None:
            raise RunFolderError(f"{run.events} does not begin with a run: it is damaged, or no run's folder")

    @property
    def state(self) -> RunState:
        """After the newest event that `news` has given."""
        assert self._state is not None
        return self._state

    @property
    def mark(self) -> Bookmark:
        """The bookmark that this story would go on from."""
        return Bookmark(bookmark.VERSION, self._read_bytes, self.state, self.chronicle, self.tempo)

    def news(self) -> Iterator[Event]:
        """Events that have come since, one by one as `state` takes them in; steps at the latest with the last one."""
        for raw in _whole_lines(self._path, self._read_bytes):
            self._read_bytes += len(raw)
            line = _object(raw)
            event = None if line is None else from_line(line)
            if event is None or line is None:
                continue
            self._take(event, line.get("time"))
            yield event
        self._settle()

    def _take(self, event: Event, written: Any) -> None:
        before = self._state
        if isinstance(event, Progressed) and before is not None:
            if event.attempt == before.attempt:
                self._steps.append(event)
        else:
            self._settle()
            before = self._state
            if isinstance(event, RunCreated):
                self._state = supervise.created(event)
            elif before is not None:
                self._state, _ = supervise.observe(before, event)
        if self._state is not None:
            time = float(written) if isinstance(written, (int, float)) else 0.0
            self.chronicle = chronicle.after(self.chronicle, time, before, event, self._state)

    def _settle(self) -> None:
        """Take in what was told of steps, the newest of each rank alone: most of a long journal is about steps."""
        if self._steps and self._state is not None:
            told, self._steps = self._steps, []
            steps = tempo.newest(told, len(self._state.ranks))
            self._state, _ = supervise.observe(self._state, replace(told[-1], steps=steps))
            self.tempo = tempo.told(self.tempo, told)


def replay(run: RunDir) -> RunState:
    """The run's state as its journal tells it. Raises RunFolderError when there is no beginning to it."""
    return Story(run).state


def last_metrics(run: RunDir) -> dict[str, Any]:
    """The newest line of metrics.jsonl, or {}. Reads only the file's end."""
    try:
        with run.metrics.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - 65536))
            lines = file.read().split(b"\n")[:-1]
    except OSError:
        return {}
    return next((line for line in map(_object, reversed(lines)) if line is not None), {})
