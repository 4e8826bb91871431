"""The recipe's shell lines (launch.setup), run on this node before anything else of the run, and what they export.

bash runs a fixed script; the lines are its arguments. They are its own: their output goes nowhere but into a report
of their failure, their stdin is empty, and what they leave in the background is ended with them.
"""

import os
import selectors
import shutil
import signal
import time
from typing import Any, Dict, List, Mapping, Optional

from launcher.agent import processes

OUTPUT_BYTES = 8 << 10  # of the end of what the lines print
OUTPUT_LINES = 20
# On the descriptor $1: a newline before each line, and in the end a NUL and the environment.
_SCRIPT = r"""
__distperf=("$1" "$2"); shift 2
for __distperf_line in "$@"; do
  set --
  printf '\n' >&"${__distperf[0]}"
  eval "$__distperf_line"
  __distperf[2]=$?
  [ "${__distperf[2]}" = 0 ] || exit "${__distperf[2]}"
done
printf '\0' >&"${__distperf[0]}"
"${__distperf[1]}" -0 >&"${__distperf[0]}"
"""
_OF_THE_SHELL = (b"_", b"SHLVL", b"PWD", b"OLDPWD")


class Setup:
    """One run of the lines."""

    def __init__(
        self, selector: selectors.BaseSelector, token: str, lines: List[str], env: Dict[str, str], cwd: str,
        limit_s: float,
    ) -> None:  # fmt: skip
        """Start them. Raises OSError, also where there is no bash."""
        self._selector = selector
        self._token = token
        self._given = given(os.environb, env)
        self._began = time.monotonic()
        self._limit_s = limit_s
        self._told, self._output = bytearray(), bytearray()
        self._status: Optional[int] = None
        self._late = False
        bash, tool = which("bash", self._given), which("env", self._given)
        if bash is None or tool is None:
            raise OSError("launch.setup needs bash and env, which are not found on this node's PATH")
        if not os.path.isdir(processes.to_bytes(cwd)):
            raise OSError("launch.setup cannot run in %s: no such folder on this node" % cwd)
        told, telling = os.pipe()
        output, writing = os.pipe()
        argv = [bash, "--noprofile", "--norc", "-c", _SCRIPT, "setup", str(telling)]
        own = {**self._given, processes.TOKEN_ENV.encode(): token.encode()}
        try:
            self._pid = processes.spawn([*argv, tool, *lines], own, cwd, writing, telling)
        except OSError:
            os.close(told)
            os.close(output)
            raise
        finally:
            os.close(telling)
            os.close(writing)
        self._pipes = {told: self._told, output: self._output}
        for fd in self._pipes:
            os.set_blocking(fd, False)
            selector.register(fd, selectors.EVENT_READ, lambda fd: self._read(fd, self._pipes[fd]))

    def _read(self, fd: int, into: bytearray) -> bool:
        try:
            data = os.read(fd, 65536)
        except BlockingIOError:
            return False
        into += data
        if into is self._output:
            del into[:-OUTPUT_BYTES]
        if not data:
            self._close(fd)
        return bool(data)

    def over(self, now: float) -> bool:
        """Whether it has ended; it is made to when its time is up. What it has started goes with it."""
        if self._status is None:
            if now - self._began > self._limit_s:
                self._late = True
                processes.send_group(self._pid, signal.SIGKILL)
            pid, status = os.waitpid(self._pid, os.WNOHANG)
            if pid:
                self._status = status
        return self._status is not None

    def answer(self) -> Dict[str, Any]:
        """How it went. line: the last one begun, from 1; status: of the shell, or "late"; env, unset: what they did to
        the environment, env null where they failed; python: the python3 that they put first on PATH, if they did.
        """
        self.close()
        lines, done, env = bytes(self._told).partition(b"\0")
        found = None if self._late or not done else parse(env)
        lost = [name for name in self._given if name not in (found or {}) and name not in _OF_THE_SHELL]
        assert self._status is not None
        text = bytes(self._output).decode("utf-8", "replace").rstrip().split("\n")
        return {
            "line": lines.count(b"\n"),
            "status": "late" if self._late else self._status,
            "output": "\n".join(text[-OUTPUT_LINES:]),
            "seconds": time.monotonic() - self._began,
            "env": None if found is None else _texts(changed(self._given, found)),
            "unset": [_text(name) for name in lost],
            "python": None if found is None else new_python(self._given, found),
        }

    def close(self) -> None:
        """End it, and whatever it has started."""
        processes.send_group(self._pid, signal.SIGKILL)
        processes.kill_all(self._token)
        for fd, into in list(self._pipes.items()):
            while self._read(fd, into):
                pass
        for fd in list(self._pipes):
            self._close(fd)

    def _close(self, fd: int) -> None:
        self._selector.unregister(fd)
        del self._pipes[fd]
        os.close(fd)


def given(base: Mapping[bytes, bytes], env: Mapping[str, str]) -> Dict[bytes, bytes]:
    """What the lines find: the node's own environment, and the recipe's variables."""
    own = {name: value for name, value in base.items() if not processes.is_of_a_rank(name)}
    own.update((processes.to_bytes(name), processes.to_bytes(value)) for name, value in env.items())
    return own


def parse(data: bytes) -> Dict[bytes, bytes]:
    """What `env -0` printed."""
    pairs = (entry.partition(b"=") for entry in data.split(b"\0") if b"=" in entry)
    return {name: value for name, _, value in pairs}


def changed(before: Mapping[bytes, bytes], after: Mapping[bytes, bytes]) -> Dict[bytes, bytes]:
    """Variables that are new or have another value, less the shell's own and those that make a rank a rank."""
    return {
        name: value
        for name, value in after.items()
        if before.get(name) != value and name not in _OF_THE_SHELL and not processes.is_of_a_rank(name)
    }


def new_python(before: Mapping[bytes, bytes], after: Mapping[bytes, bytes]) -> Optional[str]:
    """The python3 that is found after and was not found before: that of an environment which has been activated."""
    old, new = which("python3", before), which("python3", after)
    return None if new == old else new


def which(name: str, env: Mapping[bytes, bytes]) -> Optional[str]:
    """Where a program is found with this environment."""
    return shutil.which(name, path=_text(env.get(b"PATH", os.defpath.encode())))


def _texts(env: Mapping[bytes, bytes]) -> Dict[str, str]:
    return {_text(name): _text(value) for name, value in env.items()}


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")
