import os
import re
import time

import pytest

from launcher.errors import RunFolderError, UsageError
from launcher.logfiles import LogFiles
from launcher.rundir import RunDir, all_runs, find_run, new_run_id, readable_by_group, write_atomic


def make(runs, run_id, age_s=0.0):
    run = RunDir(runs / run_id)
    run.create()
    run.events.write_text("")
    os.utime(run.path, (time.time() - age_s,) * 2)
    return run


def test_run_id():
    """<name>-<YYYYmmdd-HHMMSS>-<4 hex>."""
    when = time.struct_time((2026, 3, 4, 5, 6, 7, 0, 0, 0))
    assert re.fullmatch(r"tiny-20260304-050607-[0-9a-f]{4}", new_run_id("tiny", when))
    assert new_run_id("tiny", when) != new_run_id("tiny", when) or new_run_id("tiny", when)


def test_create(tmp_path):
    """The folder is its owner's alone; `latest` points at the newest, by a relative link; nothing else is left."""
    runs = tmp_path / "runs"
    make(runs, "a")
    run = make(runs, "b")
    assert run.path.stat().st_mode & 0o777 == 0o700
    assert os.readlink(runs / "latest") == "b"
    assert sorted(os.listdir(runs)) == ["a", "b", "latest"]


def test_shared_with_the_group(tmp_path):
    """Whatever the umask: the group reads, others do not, and a setgid bit of the folder above is honoured."""
    runs = tmp_path / "runs"
    runs.mkdir()
    runs.chmod(0o2770)
    before = os.umask(0o077)
    try:
        with readable_by_group(True):
            run = RunDir(runs / "a")
            run.create(shared=True)
            write_atomic(run.recipe, "name: a")
            LogFiles(run, 1, 1)
        write_atomic(run.hostfile, "a slots=1")
    finally:
        assert os.umask(before) == 0o077
    assert run.path.stat().st_mode & 0o7777 == 0o2750
    assert run.logs(1).stat().st_mode & 0o777 == 0o750
    assert [path.stat().st_mode & 0o777 for path in (run.recipe, run.log(1, 0))] == [0o640, 0o640]
    assert run.hostfile.stat().st_mode & 0o777 == 0o600


def test_create_refused(tmp_path):
    """A disk that refuses is told with the path; an existing run is never taken over."""
    make(tmp_path, "a")
    with pytest.raises(RunFolderError, match=r"cannot make the run folder .*a: File exists"):
        RunDir(tmp_path / "a").create()
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFolderError):
        RunDir(tmp_path / "file" / "a").create()


def test_find_run(tmp_path):
    """By id, by the beginning of an id, by folder, and the latest without a name."""
    runs = tmp_path / "runs"
    first, second = make(runs, "tiny-1"), make(runs, "tiny-2")
    assert find_run("tiny-1", runs) == first
    assert find_run(str(first.path), runs) == find_run(str(first.path) + "/", tmp_path) == first
    assert find_run("latest", runs) == find_run(None, runs) == second
    assert find_run("tiny-2", runs) == second
    with pytest.raises(UsageError, match="tiny could be tiny-1, tiny-2"):
        find_run("tiny", runs)


def test_prefix(tmp_path):
    """A beginning that fits one run names it."""
    run = make(tmp_path, "tiny-20260101-000000-abcd")
    assert find_run("tiny-2026", tmp_path) == run


@pytest.mark.parametrize("name", ["a b", "it's", "日本", "-x", "a\nb", "100%", "a*b"])
def test_odd_names(tmp_path, name):
    """Names with odd characters are names."""
    run = make(tmp_path, name)
    assert find_run(name, tmp_path) == run
    assert [r.run_id for r in all_runs(tmp_path)] == [name]


@pytest.mark.parametrize(
    "name", ["nobody", "", ".", "..", "/", "a\0b", "x" * 5000, "file", "*"], ids=lambda name: name[:9]
)
def test_no_such_run(tmp_path, name):
    """What names no run is a usage error, whatever it is."""
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError):
        find_run(name, tmp_path)


def test_no_run_at_all(tmp_path):
    """No runs folder, and a `latest` that points nowhere, are told as what they are."""
    with pytest.raises(UsageError, match="there is no run in"):
        find_run(None, tmp_path / "runs")
    (tmp_path / "latest").symlink_to("gone")
    with pytest.raises(UsageError, match="there is no run in"):
        find_run(None, tmp_path)
    assert list(all_runs(tmp_path)) == []


def test_all_runs(tmp_path):
    """Oldest first; links and other folders are not runs."""
    make(tmp_path, "b", age_s=100)
    make(tmp_path, "a", age_s=50)
    (tmp_path / "other").mkdir()
    assert [run.run_id for run in all_runs(tmp_path)] == ["b", "a"]


def test_attempts(tmp_path):
    """Attempts are counted as numbers, and strange names are passed over."""
    run = make(tmp_path, "a")
    assert run.attempts() == []
    for name in ("attempt-10", "attempt-2", "attempt-x", "other"):
        (run.path / "logs" / name).mkdir(parents=True)
    assert run.attempts() == [2, 10]


def test_write_atomic(tmp_path):
    """Whole or not at all, any text; a refusal is told with the path."""
    write_atomic(tmp_path / "a", "x\udcff日")
    assert (tmp_path / "a").read_bytes() == b"x\xff\xe6\x97\xa5"
    assert os.listdir(tmp_path) == ["a"]
    with pytest.raises(RunFolderError, match=r"cannot write .*none/a"):
        write_atomic(tmp_path / "none" / "a", "x")
