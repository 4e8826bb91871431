"""Reads the folder that goes along: what git knows of it and does not ignore, or without git everything."""

from __future__ import annotations

import hashlib
import os
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

from distperf.recipe.launching import SyncSection
from launcher.errors import UsageError
from launcher.sync.code import Code, CodeFile, too_much, wanted

LEFT_OUT = (".git", "__pycache__", ".venv", "venv", "node_modules")  # where git does not say
GIT = ("git", "ls-files", "--cached", "--others", "--exclude-standard", "-z")


def collect(sync: SyncSection, name: str, without: Path) -> Code:
    """The code of a run called `name`; `without`: a folder that is none of it (of runs).

    Raises UsageError where it cannot be read or is too much.
    """
    assert sync.source is not None, "there is none to be sent"
    source = os.path.abspath(sync.source)
    if not os.path.isdir(source):
        raise UsageError(f"launch.sync.source {sync.source}: no folder {source} on this machine")
    runs = os.path.relpath(os.path.realpath(without), os.path.realpath(source))
    paths = wanted(set(_listed(source, "")), (*sync.exclude, runs))
    try:
        found = {path: os.lstat(os.path.join(source, path)) for path in paths}
        sizes = {path: info.st_size for path, info in found.items() if stat.S_ISREG(info.st_mode)}
        if (why := too_much(sizes, sync.limit_mib, sync.source)) is not None:
            raise UsageError(why)
        files = tuple(_file(source, path, info) for path, info in found.items() if _is_code(info))
    except OSError as error:
        raise UsageError(f"launch.sync.source: cannot read {error.filename}: {error.strerror}") from None
    return Code(source, files, sync.keep, name)


def _is_code(info: os.stat_result) -> bool:
    return stat.S_ISREG(info.st_mode) or stat.S_ISLNK(info.st_mode)


def _file(source: str, path: str, info: os.stat_result) -> CodeFile:
    whole = os.path.join(source, path)
    if stat.S_ISLNK(info.st_mode):
        return CodeFile(path, 0, 0, None, os.readlink(whole))
    return read_file(whole, path)


def read_file(origin: str, path: str) -> CodeFile:
    """A file as it is now, to be at `path` there. Raises OSError."""
    info, found = os.stat(origin), hashlib.sha256()
    with open(origin, "rb") as file:
        while piece := file.read(1 << 20):
            found.update(piece)
    return CodeFile(path, stat.S_IMODE(info.st_mode), info.st_size, found.hexdigest(), origin=origin)


def _listed(source: str, below: str) -> Iterator[str]:
    """Paths of files, relative to `source`, in the folder `below` of it; of repositories inside too."""
    folder = os.path.join(source, below)
    try:
        done = subprocess.run(GIT, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, check=False)
        names = done.stdout.split(b"\0") if done.returncode == 0 else None
    except FileNotFoundError:
        names = None
    if names is None:
        yield from _walked(source, below)
        return
    for name in filter(None, map(os.fsdecode, names)):
        path = os.path.join(below, name.rstrip("/"))
        whole = os.path.join(source, path)
        if os.path.isdir(whole) and not os.path.islink(whole):
            if os.path.exists(os.path.join(whole, ".git")):
                yield from _listed(source, path)
        elif os.path.lexists(whole):  # what was removed is still in the index
            yield path


def _walked(source: str, below: str) -> Iterator[str]:
    for folder, folders, names in os.walk(os.path.join(source, below)):
        links = [name for name in folders if os.path.islink(os.path.join(folder, name))]
        folders[:] = [name for name in folders if name not in LEFT_OUT and name not in links]
        for name in (*names, *links):
            yield os.path.relpath(os.path.join(folder, name), source)
