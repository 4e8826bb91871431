import os
from pathlib import Path

import pytest

from distperf.data.sources import find_sources, fingerprint
from distperf.errors import DataError


def test_files_are_sorted_and_each_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Overlapping globs, relative or absolute, in any order, with ** or not, give the same files."""
    for name in ("b.txt", "a.txt", "deep/er/c.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    monkeypatch.chdir(tmp_path)
    names = [source.path.name for source in find_sources(["*.txt", f"{tmp_path}/**/*.txt", "./b.txt"])]
    assert names == ["a.txt", "b.txt", "c.txt"]
    assert find_sources(["**/*.txt"]) == find_sources(["deep/**/*", "*.txt"])


def test_a_glob_that_matches_nothing_names_itself_and_the_folder(tmp_path: Path):
    """Each glob must match; a folder that is not there is told apart from an empty one."""
    (tmp_path / "a.txt").write_text("x")
    with pytest.raises(DataError, match=rf"no text file matches '{tmp_path}/\*.md' in {tmp_path}$"):
        find_sources([f"{tmp_path}/a.txt", f"{tmp_path}/*.md"])
    with pytest.raises(DataError, match=rf"in {tmp_path}/none, which does not exist"):
        find_sources([f"{tmp_path}/none/**/*.txt"])
    with pytest.raises(DataError, match="no text file matches"):
        find_sources([str(tmp_path)])


def test_what_is_no_readable_file_is_refused(tmp_path: Path):
    """A dangling link and a pipe (which would block for ever) are named; nothing is skipped in silence."""
    (tmp_path / "gone.txt").symlink_to(tmp_path / "target")
    with pytest.raises(DataError, match=r"gone.txt: No such file"):
        find_sources([f"{tmp_path}/*.txt"])
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DataError, match="pipe: not a regular file"):
        find_sources([f"{tmp_path}/pipe"])


def test_empty_files_are_no_documents(tmp_path: Path):
    """They are left out; nothing but empty files is an error that counts them."""
    (tmp_path / "a.txt").touch()
    (tmp_path / "b.txt").touch()
    with pytest.raises(DataError, match="all 2 files are empty"):
        find_sources([f"{tmp_path}/*.txt"])
    (tmp_path / "c.txt").write_text("x")
    assert [source.path.name for source in find_sources([f"{tmp_path}/*.txt"])] == ["c.txt"]


def test_the_fingerprint_follows_files_and_tokenizer(tmp_path: Path):
    """Another size, time, name or tokenizer is another fingerprint; looking twice is not."""
    file = tmp_path / "a.txt"
    file.write_text("x")

    def now(tokenizer: str = "byte", field: str = "text") -> str:
        return fingerprint(find_sources([f"{tmp_path}/*"]), tokenizer, field)

    seen = [now(), now("other"), now(field="body")]
    assert now() == seen[0]
    os.utime(file, ns=(1, 1))
    seen.append(now())
    file.write_text("xy")
    seen.append(now())
    file.rename(tmp_path / "b.txt")
    seen.append(now())
    assert len(set(seen)) == 6
