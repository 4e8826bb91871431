"""Code that comes along (launch.sync): files by their hash, kept for the next launch, and a run's own copy of them.

In ~/.cache/distperf (XDG_CACHE_HOME): code/HASH holds a file's bytes, work/NAME is the copy that ranks run in. A copy
goes with its agent; work/NAME.lock, which that one holds, tells a later agent of copies whose own was killed.
"""

import base64
import fcntl
import hashlib
import os
import shutil
import time
import zlib
from typing import Any, Dict, List, Tuple

from launcher.agent.processes import to_bytes

KEPT_S = 30 * 86400.0  # since a file was last wanted

_copies: List[Tuple[bytes, int]] = []  # of this agent: folder, descriptor of its lock


def _folder(name: str) -> bytes:
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    path = os.fsencode(os.path.join(cache, "distperf", name))
    os.makedirs(path, mode=0o700, exist_ok=True)
    return path


def _file(digest: str) -> bytes:
    return os.path.join(_folder("code"), digest.encode("ascii"))


def code_missing(digests: List[str]) -> List[str]:
    """Of these files, those that are not here yet."""
    return [digest for digest in digests if not os.path.exists(_file(digest))]


def code_store(parts: List[Dict[str, Any]], token: str) -> bool:
    """Take parts of files, in order. token: of the launch. The last one of a file makes it known.

    Raises ValueError where a file is not what its hash says.
    """
    for part in parts:
        whole = _file(part["digest"])
        beside = whole + b"." + token.encode("ascii")
        with open(beside, "ab" if part["offset"] else "wb") as file:
            file.write(zlib.decompress(base64.b64decode(part["data"])))
        if part["last"]:
            if _digest(beside) != part["digest"]:
                os.unlink(beside)
                raise ValueError("a file has changed while it was sent")
            os.replace(beside, whole)
    return True


def _digest(path: bytes) -> str:
    found = hashlib.sha256()
    with open(path, "rb") as file:
        for piece in iter(lambda: file.read(1 << 20), b""):
            found.update(piece)
    return found.hexdigest()


def code_lay_out(name: str, files: List[List[Any]], keep: bool) -> str:
    """Make the folder `name` of copies of files: [path, mode, hash] or, for a symbolic link, [path, 0, null, target].

    keep: it is not removed by this agent or a later one. Returns the folder.
    """
    work, code = _folder("work"), _folder("code")
    _sweep(work, code)
    folder = os.path.join(work, to_bytes(name))
    if not keep:
        lock = os.open(folder + b".lock", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _copies.append((folder, lock))
    shutil.rmtree(folder, ignore_errors=True)
    os.mkdir(folder, 0o700)
    for path, mode, digest, *target in files:
        copy = os.path.join(folder, to_bytes(path))
        os.makedirs(os.path.dirname(copy), exist_ok=True)
        if digest is None:
            os.symlink(to_bytes(target[0]), copy)
            continue
        kept = os.path.join(code, digest.encode("ascii"))
        shutil.copyfile(kept, copy)
        os.chmod(copy, mode)
        os.utime(kept)
    return os.fsdecode(folder)


def _sweep(work: bytes, code: bytes) -> None:
    """Let go of copies that no agent holds, and of files that nobody has wanted for long."""
    for name in os.listdir(work):
        if name.endswith(b".lock"):
            lock = os.open(os.path.join(work, name), os.O_WRONLY | os.O_CLOEXEC)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _remove(os.path.join(work, name[: -len(b".lock")]))
            except BlockingIOError:
                continue
            finally:
                os.close(lock)
    for name in os.listdir(code):
        path = os.path.join(code, name)
        if time.time() - os.stat(path).st_mtime > KEPT_S:
            os.unlink(path)


def _remove(folder: bytes) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    os.unlink(folder + b".lock")


def clear() -> None:
    """Remove this agent's copies, but those that are kept."""
    while _copies:
        folder, lock = _copies.pop()
        _remove(folder)
        os.close(lock)
