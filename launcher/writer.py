"""Text to the user's streams, by a thread of its own: a terminal that has stopped reading stops nothing else.

Ctrl-S, a pager that waits, a pipe whose reader is slow: the run's heartbeats must not wait for them. What they do not
take is let go after MAX_WAITING characters and told of later; the logs have all of it.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import TextIO

MAX_WAITING = 16 << 20  # characters; a fast terminal takes a megabyte a second
FLUSH_LIMIT_S = 5.0


class Writer:
    """Writes in the order given, over all streams. A stream that refuses (`| head` has left) is written to no more."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[TextIO, str]] = deque()
        self._size = 0
        self._left_out = 0
        self._gone: list[TextIO] = []
        self._writing = self._closed = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._work, name="writer", daemon=True)
        self._thread.start()

    def put(self, stream: TextIO, text: str) -> None:
        """Have text written; never waits."""
        with self._changed:
            if self._size > MAX_WAITING:
                self._left_out += text.count("\n")
                return
            if self._left_out:
                note = f"distperf: {self._left_out:,} lines were not shown, as nobody read them; the logs have all\n"
                self._left_out, text = 0, note + text
            self._waiting.append((stream, text))
            self._size += len(text)
            self._changed.notify_all()

    def flush(self) -> None:
        """Return when all is written, or nobody has read for a while."""
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting and not self._writing, FLUSH_LIMIT_S)

    def close(self) -> None:
        """Write what waits and end; or leave it, when nobody has read for a while."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join(FLUSH_LIMIT_S)

    def _work(self) -> None:
        while (item := self._next()) is not None:
            stream, text = item
            if stream in self._gone:
                continue
            try:
                stream.write(text)
                stream.flush()
            except OSError:  # its reader has left, the terminal is closed, a disk is full: the run goes on
                self._gone.append(stream)

    def _next(self) -> tuple[TextIO, str] | None:
        with self._changed:
            self._writing = False
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._waiting or self._closed)
            if not self._waiting:
                return None
            stream, text = self._waiting.popleft()
            self._size -= len(text)
            self._writing = True
            return stream, text
