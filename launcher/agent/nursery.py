"""Warm start, the agent's side: the nursery (launcher.agent.forker), and which ranks come from it.

The agent decides, the nursery forks. Whatever is unusual is left to a plain exec, which is always right: ranks whose
environments differ in more than what makes them ranks, another interpreter, folder or program than the nursery has
prepared for, a nursery with a thread of its own or none at all.
"""

import importlib.util
import os
import re
import signal
import socket
from typing import Any, Dict, List, Mapping, Optional, Tuple

from launcher.agent import forker, processes
from launcher.agent.spool import Spool

REPLY_LIMIT_S = 20.0  # a fork takes milliseconds; a nursery that is stopped must not stop the agent
_SOURCE = "launcher.agent.forker"


class Nursery:
    """One running nursery. `why_not` says what is wrong with it, once something is."""

    def __init__(
        self, order: Dict[str, Any], env: Mapping[bytes, bytes], modules: List[str], spool: Spool
    ) -> None:
        """Start it for ranks like this one. Raises OSError."""
        self.ready = self.was_ready = False
        self.why_not = ""
        self._likeness = likeness(order, env)
        self._log = spool.put("nursery.log", "")
        self.link, other = socket.socketpair()
        self.link.settimeout(REPLY_LIMIT_S)
        argv = [order["argv"][0], "-u", spool.put("nursery.py", _source()), str(other.fileno())]
        with other, open(self._log, "ab") as log:
            # OpenBLAS starts its threads when it is loaded, and a process with threads is not to be forked.
            shared = {**processes.shared(env), b"OPENBLAS_NUM_THREADS": b"1"}
            self.pid = processes.spawn(argv, shared, order["cwd"], log.fileno(), other.fileno())
        forker.send(self.link, {"argv": order["argv"], "modules": modules})

    def read(self) -> None:
        """Its socket is readable: it is ready, will never be, or has ended."""
        try:
            message, _ = forker.receive(self.link)
        except (OSError, ValueError) as error:
            message = {"error": str(error)}
        if message is not None and "ready" in message:
            self.ready = self.was_ready = True
            return
        self.ready = False
        self.why_not = message["error"] if message else self._last_words()

    def fits(self, order: Dict[str, Any], env: Mapping[bytes, bytes]) -> bool:
        """Whether a rank can come from here and be the same as if it were exec'ed."""
        return self.ready and likeness(order, env) == self._likeness

    def fork(self, argv: List[str], env: Mapping[bytes, bytes], log_fd: int, report_fd: int) -> int:
        """The pid of a new rank, a child of this agent in a session of its own. Raises OSError."""
        texts = {_to_text(name): _to_text(value) for name, value in env.items()}
        forker.send(self.link, {"argv": argv, "env": texts}, (log_fd, report_fd))
        message, _ = forker.receive(self.link)
        if message is None or "pid" not in message:
            raise OSError(message["error"] if message else self._last_words())
        return int(message["pid"])

    def give_up(self, why: str) -> None:
        """No further rank comes from here."""
        self.ready, self.why_not = False, why

    def close(self) -> None:
        """End it; the agent reaps it like any other child."""
        self.link.close()
        processes.send([self.pid], signal.SIGKILL)

    def _last_words(self) -> str:
        with open(self._log, errors="replace") as log:
            lines = log.read().split("\n")
        said = [line for line in lines if line.strip()]
        return said[-1] if said else "its process has ended"


def likeness(order: Dict[str, Any], env: Mapping[bytes, bytes]) -> Tuple[Any, ...]:
    """What ranks must have in common to come from one nursery: interpreter, program, folder, environment."""
    argv = order["argv"]
    return argv[0], argv[2:4] if argv[2:3] == ["-m"] else argv[2:3], order["cwd"], processes.shared(env)


def modules_for(warm: Optional[Dict[str, Any]], order: Dict[str, Any]) -> List[str]:
    """What to import ahead for ranks of this order; nothing where a nursery is not asked for or does not pay.

    warm: see launcher.protocol.Start.
    """
    argv = order["argv"]
    if not warm or argv[1:2] != ["-u"] or len(argv) < 3:
        return []
    if argv[2] == "-m":
        return list(warm["modules"])
    source = _read(os.path.join(processes.to_bytes(order["cwd"]), processes.to_bytes(argv[2])))
    return [] if source is None else matching(warm["modules"], source)


def matching(modules: Mapping[str, str], source: bytes) -> List[str]:
    """Modules whose pattern is found in a script; none without the first. What the script imports is not read."""
    found = [name for name, pattern in modules.items() if re.search(pattern.encode(), source)]
    return found if next(iter(modules)) in found else []


def _read(path: bytes) -> Optional[bytes]:
    """A script's text; None where there is none, or a folder or archive that python would run."""
    try:
        with open(path, "rb") as file:
            text = file.read()
    except OSError:
        return None
    return None if text.startswith(b"PK") or b"\0" in text else text


def _to_text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def _source() -> str:
    spec = importlib.util.find_spec(_SOURCE)
    assert spec is not None
    source: str = spec.loader.get_source(_SOURCE)  # type: ignore[union-attr]  # both kinds of loader have it
    return source
