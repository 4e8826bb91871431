"""The folder in this node's memory where a run's ranks keep checkpoints: gone with the run, however it ends.

The agent makes it, holds a lock on it, and removes it when it leaves. A killed agent's guardian removes it; where both
were killed, the folder has no owner, and the next agent of this user that looks there does.
"""

import fcntl
import os
import shutil
import tempfile
from typing import List

from launcher.agent.spool import unowned

ENV = "DISTPERF_MEMORY"
PREFIX = "distperf-memory-"


class Tier:
    """One run's folder under `root`; every attempt on this node finds what the ones before have kept in it."""

    def __init__(self, root: str, run_id: str) -> None:
        """Raises OSError, whose text names the recipe's key."""
        try:
            reclaim(root)
            hidden = tempfile.mkdtemp(prefix="." + PREFIX, dir=root)  # mode 0700
            self._owned_fd = os.open(hidden, os.O_RDONLY | os.O_CLOEXEC)
            fcntl.flock(self._owned_fd, fcntl.LOCK_EX)
            self.folder = os.path.join(root, PREFIX + run_id + hidden[-9:])
            os.rename(hidden, self.folder)  # locked before anybody takes it for left over
        except OSError as error:
            raise OSError("checkpoint.memory.dir %s: %s" % (root, error.strerror)) from None

    def remove(self) -> None:
        """Give the memory back."""
        shutil.rmtree(self.folder, ignore_errors=True)
        os.close(self._owned_fd)


def left(root: str) -> List[str]:
    """Folders of this user under `root` whose run is gone. Raises OSError."""
    names = sorted(name for name in os.listdir(root) if name.startswith(PREFIX))
    return [folder for folder in (os.path.join(root, name) for name in names) if unowned(folder)]


def reclaim(root: str) -> None:
    """Remove them. Raises OSError where `root` cannot be looked at."""
    for folder in left(root):
        shutil.rmtree(folder, ignore_errors=True)
