"""The folder as git knows it, and as it is without git."""

from __future__ import annotations

import os
import subprocess

import pytest

from distperf.recipe.launching import SyncSection
from launcher.errors import UsageError
from launcher.sync.collect import collect

GIT = ("git", "-c", "user.name=n", "-c", "user.email=e", "-c", "init.defaultBranch=main")


def git(folder, *args):
    subprocess.run([*GIT, *args], cwd=folder, check=True, capture_output=True)


def paths(folder, **said):
    code = collect(SyncSection(source=str(folder), **said), "run-1", folder / "runs")
    return [file.path for file in code.files]


@pytest.fixture
def folder(tmp_path):
    for name in ("train.py", "lib/net.py", "lib/__pycache__/net.pyc", "out/log", "runs/run-1/log"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / "link.py").symlink_to("train.py")
    os.mkfifo(tmp_path / "fifo")
    return tmp_path


def test_what_git_ignores_stays_here(folder):
    """Tracked and untracked files go along, changed or not; ignored and removed ones, and runs, do not."""
    (folder / ".gitignore").write_text("out\n__pycache__\n")
    (folder / "gone.py").write_text("")
    git(folder, "init")
    git(folder, "add", "train.py", "gone.py")
    git(folder, "commit", "-m", "x")
    (folder / "gone.py").unlink()
    (folder / "inner").mkdir()
    (folder / "inner" / "more.py").write_text("")
    git(folder / "inner", "init")
    assert paths(folder) == [".gitignore", "inner/more.py", "lib/net.py", "link.py", "train.py"]
    assert paths(folder / "lib") == ["net.py"]


def test_without_git_all_goes_along(folder):
    """But runs, what is excluded, and what is made anew anyway."""
    assert paths(folder, exclude=("out",)) == ["lib/net.py", "link.py", "train.py"]


def test_modes_links_and_names_that_are_not_text(folder):
    """Kept as they are."""
    (folder / "train.py").chmod(0o750)
    os.close(os.open(os.fsencode(folder) + b"/\xff.py", os.O_CREAT))
    code = collect(SyncSection(source=str(folder)), "run-1", folder / "runs")
    found = {file.path: file for file in code.files}
    assert (found["train.py"].mode, found["link.py"].target) == (0o750, "train.py")
    assert "\udcff.py" in found


def test_what_cannot_be_sent_is_a_usage_error(folder):
    """Before any host is contacted."""
    with pytest.raises(UsageError, match="no folder"):
        paths(folder / "nowhere")
    with open(folder / "big", "wb") as file:
        file.truncate(3 << 20)
    with pytest.raises(
        UsageError, match=r"more than launch\.sync\.limit_mib, 2; the largest are\n +3\.0 MiB  big"
    ):
        paths(folder, limit_mib=2)
