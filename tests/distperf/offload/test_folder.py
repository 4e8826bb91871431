"""Who owns what lies on a drive, and what becomes of it when the owner is gone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from distperf.errors import OffloadError
from distperf.offload import folder

OWNER = """
import sys
from pathlib import Path
from distperf.offload import folder
folder.claim(Path(sys.argv[1]))
print("mine", flush=True)
sys.stdin.read()
"""


def state_file(drive: Path, run: str = "run-a", rank: int = 0) -> Path:
    return drive / f"{folder.PREFIX}{run}" / f"rank-{rank:05}{folder.SUFFIX}"


@pytest.fixture
def owner(tmp_path):
    """A process that owns a file, and the file."""
    path = state_file(tmp_path)
    command = [sys.executable, "-c", OWNER, str(path)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with process:
        assert process.stdout.readline() == b"mine\n"
        yield process, path
        process.kill()


def test_a_living_owners_file_stays(owner, tmp_path):
    """Nobody else may claim or remove it; a file nobody owns goes, and so does its folder."""
    path = owner[1]
    left = state_file(tmp_path, "run-b")
    left.parent.mkdir()
    left.touch()
    with pytest.raises(OffloadError, match=r"rank-00000.state belongs to a process that is still running"):
        folder.claim(path)
    assert folder.reclaim(tmp_path) == [left]
    assert path.exists()
    assert not left.parent.exists()


def test_a_killed_owners_file_goes(owner, tmp_path):
    """SIGKILL leaves the file without its lock; whatever is no state of ours stays."""
    process, path = owner
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    notes = path.parent / "notes.txt"
    notes.touch()
    assert path.exists()
    assert folder.reclaim(tmp_path) == [path]
    assert notes.exists()
    notes.unlink()
    assert folder.reclaim(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


def test_the_next_attempt_takes_over(owner):
    """The same run claims what its own earlier attempt, which was killed, had."""
    process, path = owner
    process.kill()
    process.wait()
    folder.release(path, folder.claim(path))
    assert not path.parent.exists()


def test_a_drive_that_is_not_there(tmp_path):
    """No folder is made where the drive should be."""
    with pytest.raises(FileNotFoundError):
        folder.claim(state_file(tmp_path / "none"))
    assert folder.reclaim(tmp_path / "none") == []
