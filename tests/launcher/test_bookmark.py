import os
import time

import pytest

from launcher import bookmark
from launcher.journal import Story
from launcher.librarian import keeping_bookmarks
from launcher.rundir import RunDir
from scripts.recorded_run import record


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return record(tmp_path_factory.mktemp("runs") / "r", nodes=2, slots=3, steps=40, alive=False).run


def test_a_bookmark_gives_back_what_was_read(run):
    """State, chronicle and tempo from anywhere in the journal on are the same as from its beginning."""
    whole = Story(run)
    lines = run.events.read_bytes().splitlines(keepends=True)
    for keep in (1, 9, len(lines) // 2, len(lines) - 1):
        run.events.write_bytes(b"".join(lines[:keep]))
        bookmark.save(run, Story(run).mark)
        run.events.write_bytes(b"".join(lines))
        assert bookmark.load(run).offset < run.events.stat().st_size
        again = Story(run)
        assert (again.state, again.chronicle) == (whole.state, whole.chronicle)
        assert again.tempo.looks[-1] == whole.tempo.looks[-1]
    run.bookmark.unlink()


@pytest.mark.parametrize("text", ["", "{}", '{"version": 99}', "\x00", None])
def test_a_bookmark_that_does_not_fit_is_passed_over(run, text):
    """A damaged one, one of another version, one of a longer journal: the journal is read from its beginning."""
    if text is None:
        mark = Story(run).mark
        bookmark.save(run, bookmark.Bookmark(1, mark.offset + 1, mark.state, mark.chronicle, mark.tempo))
    else:
        run.bookmark.write_text(text)
    assert bookmark.load(run) is None
    assert Story(run).state.state == "finished"
    run.bookmark.unlink()


def test_kept_while_a_run_goes(tmp_path):
    """A journal that grows gets a bookmark, a short one none; a damaged folder disturbs nobody."""
    recorder = record(tmp_path / "r", nodes=1, slots=2, steps=10, alive=True)
    run: RunDir = recorder.run
    with keeping_bookmarks(run, every_s=0.01, least=1):
        deadline = time.monotonic() + 10
        while not run.bookmark.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
    assert bookmark.load(run).state == Story(run).state
    run.bookmark.unlink()
    with keeping_bookmarks(run, every_s=0.01, least=1 << 20):
        time.sleep(0.05)
    assert not run.bookmark.exists()
    os.unlink(run.events)
    with keeping_bookmarks(run, every_s=0.01, least=0):
        time.sleep(0.03)
