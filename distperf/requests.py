"""What the agent asks of a rank while it trains, read from a FIFO beside its file of stacks (launcher.agent.stacks).

A line is a request: `?` (which collectives do you wait in), `save` (a checkpoint after the next step), `profile ID
STEPS RANKS` (a trace, once so many ranks have been asked). A thread reads them, since a rank that hangs in native code
has let go of the interpreter and can still answer the first.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass

from distperf.contract import STACK_FILE_ENV
from distperf.measure.recorder import enlarge, write_down

MAX_REQUESTS_BYTES = 4096


@dataclass(frozen=True)
class Asked:
    """How many ranks have been asked to end, to save, and wait to make a trace; on one rank, 0 or 1."""

    stop: int = 0
    save: int = 0
    profile: int = 0


NOTHING = Asked()


@dataclass(frozen=True)
class ProfileWanted:
    """A trace of so many steps, on so many ranks."""

    id: str
    steps: int
    ranks: int

    @classmethod
    def parse(cls, line: str) -> ProfileWanted | None:
        """From `profile ID STEPS RANKS`."""
        word, *rest = line.split()
        if word != "profile" or len(rest) != 3 or not all(text.isdecimal() for text in rest[1:]):
            return None
        return cls(rest[0], max(1, int(rest[1])), int(rest[2]))


class Requests:
    """What has been asked of this rank and not been taken yet."""

    def __init__(self) -> None:
        self._save = threading.Event()
        self._profile: ProfileWanted | None = None

    def put(self, line: str) -> None:
        """A request; one of another version is passed over."""
        if line == "save":
            self._save.set()
        elif (wanted := ProfileWanted.parse(line)) is not None:
            self._profile = wanted

    def take_save(self) -> bool:
        """Whether a checkpoint was asked for since the last call."""
        asked = self._save.is_set()
        self._save.clear()
        return asked

    def take_profile(self) -> ProfileWanted | None:
        """The newest trace that was asked for since the last call."""
        wanted, self._profile = self._profile, None
        return wanted


def listen() -> Requests:
    """Read requests from here on, where there is an agent. To be called before the process group is made."""
    requests, path = Requests(), os.environ.get(STACK_FILE_ENV)
    if not path:
        return requests
    enlarge()
    try:
        os.mkfifo(f"{path}.ask", 0o600)
        fd = os.open(f"{path}.ask", os.O_RDWR | os.O_CLOEXEC)  # for writing too: its end never comes
    except OSError:  # the agent's folder is gone, and so is who would ask
        return requests
    threading.Thread(target=_serve, args=(requests, path, fd), name="requests", daemon=True).start()
    return requests


def _serve(requests: Requests, path: str, fd: int) -> None:
    while True:
        for line in os.read(fd, MAX_REQUESTS_BYTES).decode("utf-8", "replace").splitlines():
            if line != "?":
                requests.put(line)
                continue
            try:
                write_down(path)
            except OSError:  # the agent's folder is gone
                return
