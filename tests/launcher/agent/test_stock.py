"""Files by their hash on a node, and a run's copy of them, sent as a launch does it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from distperf.recipe.launching import SyncSection
from launcher import protocol
from launcher.agent import questions, stock
from launcher.errors import SyncFailed
from launcher.sync.collect import collect
from launcher.sync.send import Carrier


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    yield tmp_path / "cache" / "distperf"
    stock.clear()


@pytest.fixture
def source(tmp_path):
    folder = tmp_path / "source"
    (folder / "deep").mkdir(parents=True)
    (folder / "deep" / "a.py").write_text("a")
    (folder / "run.sh").write_text("b")
    (folder / "run.sh").chmod(0o755)
    (folder / "same").write_text("a")
    (folder / "large").write_bytes(os.urandom((2 << 20) + 5))
    (folder / "link").symlink_to("deep/a.py")
    return folder


def ask(question, args):
    """As an agent answers."""
    try:
        return protocol.Answer(0, questions.answer(question, args), None)
    except (OSError, ValueError) as error:
        return protocol.Answer(0, None, f"{question}: {error}")


def carry(source, name="run-1", keep=False):
    carrier = Carrier(collect(SyncSection(source=str(source), keep=keep), name, source / "runs"))
    return Path(carrier("host1", ask)), carrier


def test_a_copy_is_what_was_sent(cache, source):
    """Bytes, modes, links; equal files are sent once, and nothing that is there already."""
    folder, carrier = carry(source)
    assert (folder / "large").read_bytes() == (source / "large").read_bytes()
    assert (folder / "deep" / "a.py").read_text() == (folder / "same").read_text() == "a"
    assert ((folder / "run.sh").stat().st_mode & 0o777, os.readlink(folder / "link")) == (0o755, "deep/a.py")
    assert carrier.sent_bytes == 2 + (2 << 20) + 5
    (source / "same").write_text("changed")
    assert carry(source, "run-2")[1].sent_bytes == len("changed")
    assert carry(source, "run-3")[1].told(1).endswith("all there")


def test_what_ranks_change_in_a_copy_stays_there(cache, source):
    """The next copy is of the files as they were sent."""
    folder, _ = carry(source)
    (folder / "same").write_text("by a rank")
    assert (carry(source, "run-2")[0] / "same").read_text() == "a"


def test_a_copy_goes_with_its_agent_unless_it_is_kept(cache, source):
    """And one whose agent was killed goes with the next launch; one that an agent holds does not."""
    held, _ = carry(source)
    kept, _ = carry(source, "run-2", keep=True)
    dead = cache / "work" / "run-0-00000000"
    dead.mkdir()
    Path(f"{dead}.lock").touch()
    carry(source, "run-3")
    assert (held.exists(), dead.exists()) == (True, False)
    stock.clear()
    assert list((cache / "work").iterdir()) == [kept]


def test_a_file_that_changes_meanwhile_is_refused(cache, source):
    """By its hash, before any rank could run it."""
    code = collect(SyncSection(source=str(source)), "run-1", source / "runs")
    (source / "same").write_text("z")
    (source / "deep" / "a.py").write_text("z")
    with pytest.raises(SyncFailed, match="has changed while it was sent"):
        Carrier(code)("host1", ask)
    assert not any(path.read_bytes() == b"z" for path in (cache / "code").iterdir())


def test_a_disk_that_refuses_is_told(cache, source):
    """Host and reason."""
    cache.parent.mkdir()
    cache.write_text("no folder")
    with pytest.raises(SyncFailed, match=r"^host1: launch\.sync: .*"):
        carry(source)
