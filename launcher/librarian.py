"""A thread beside the controller that keeps the bookmark of a journal which grows long (launcher.bookmark)."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from launcher import bookmark
from launcher.errors import RunFolderError
from launcher.journal import Story
from launcher.rundir import RunDir

EVERY_S = 1.0
LEAST_BYTES = 1 << 20  # of journal between two bookmarks: read in a fraction of a second


@contextmanager
def keeping_bookmarks(run: RunDir, every_s: float = EVERY_S, least: int = LEAST_BYTES) -> Iterator[None]:
    """While the run goes, from a thread. It reads the journal only when there is enough to bookmark."""
    over = threading.Event()
    thread = threading.Thread(target=_keep, args=(run, over, every_s, least), name="librarian", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(every_s)


def _keep(run: RunDir, over: threading.Event, every_s: float, least: int) -> None:
    story: Story | None = None
    marked = 0
    while not over.wait(every_s):
        try:
            size = run.events.stat().st_size
            if size - marked < least:
                continue
            story = story or Story(run)
            for _event in story.news():
                pass
            written = bookmark.save(run, story.mark)
        except (OSError, RunFolderError):  # no journal yet, or a disk that is full: readers do without
            continue
        marked = size
        least = max(least, 4 * written)  # the state of thousands of ranks is long, too
