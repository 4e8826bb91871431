"""Agents on this machine, as child processes: the same bootstrap, the same frames, no SSH.

There is no link that could be lost: end of file means that the other side is gone.
"""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from typing import IO

from launcher.errors import BootstrapFailed
from launcher.hostfile import Host
from launcher.transport import bundle


def _own_umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


_UMASK = _own_umask()  # the user's: what ranks write is not the run's folder, which `run.share` is about


class LocalStream:
    """The pipes of one agent process."""

    shipped: str | None = None

    def __init__(self, process: subprocess.Popen[bytes], stderr: IO[bytes]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._process = process
        self._in = process.stdin
        self._out = process.stdout
        self._stderr = stderr
        self._closed, self._closing = socket.socketpair()  # wakes a blocked read

    def read(self, size: int) -> bytes:
        """See Stream."""
        if self._out.closed:
            return b""
        ready, _, _ = select.select([self._out.fileno(), self._closed.fileno()], [], [])
        data = b"" if self._closed.fileno() in ready else os.read(self._out.fileno(), size)
        if not data:
            self._out.close()
            self._closed.close()
        return data

    def write(self, data: bytes) -> None:
        """See Stream."""
        try:
            self._in.write(data)
            self._in.flush()
        except ValueError as error:  # closed
            raise BrokenPipeError(str(error)) from None

    def close(self) -> None:
        """See Stream. The agent sees end of file, ends its ranks and leaves by itself."""
        try:
            self._in.close()
        except OSError:
            pass
        self._closing.close()

    def explain(self) -> str:
        """See Stream. Asked once, when the agent has ended."""
        try:
            status = self._process.wait(timeout=1.0)
        except subprocess.TimeoutExpired:
            return ""
        with self._stderr as stderr:
            stderr.seek(0)
            text = stderr.read()[-4096:].decode("utf-8", "replace").strip()
        self._out.close()
        self._closed.close()
        return f"the agent ended with status {status}" + (f"; it said:\n{text}" if text else "")


def start(argv: list[str], env: Mapping[str, str] | None = None) -> LocalStream:
    """Start an agent's command as a child of this process. Raises OSError."""
    stderr = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the stream, and has no name to leave behind
    try:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            env=env,
            start_new_session=True,  # the terminal's Ctrl-C reaches the controller only
            umask=_UMASK,
        )
    except OSError:
        stderr.close()
        raise
    return LocalStream(process, stderr)


_ahead: list[LocalStream] = []


def start_ahead() -> None:
    """Start an agent for this process's first connection now, so that it wakes up while the rest is being imported.

    One that is not taken sees the end of this process and leaves.
    """
    try:
        stream = LocalTransport().connect(Host("localhost", None))
        stream.shipped = bundle.ship(stream.write)
    except (BootstrapFailed, OSError):
        return  # the ordinary start will say why
    _ahead.append(stream)


class LocalTransport:
    """Starts agents under `python` (default: this interpreter)."""

    link_may_return = False

    def __init__(self, python: str | None = None) -> None:
        self._python = python or sys.executable

    def connect(self, host: Host) -> LocalStream:
        """See Transport. Takes the agent that was started ahead, if there is one."""
        if _ahead and host.python is None and self._python == sys.executable:
            return _ahead.pop()
        try:
            return start(bundle.argv(host.python or self._python))
        except OSError as error:
            raise BootstrapFailed(host.name, f"cannot start {error.filename}: {error.strerror}") from None

    def describe(self, host: Host) -> str:
        """See Transport: one is there already."""
        return ""

    def close(self) -> None:
        """Nothing is shared."""
