"""Agents by a command that runs another one elsewhere, stdin and stdout connected: srun, kubectl exec, docker exec.

The command lives as long as its agent, and when it ends the agent sees the end of its input: a link cannot come back.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence

from launcher.errors import BootstrapFailed
from launcher.hostfile import Host
from launcher.transport import bundle
from launcher.transport.local import LocalStream, start


class CommandTransport:
    """Starts agents by `before(host)` with the bootstrap behind it. env: of the command; None: this process's own.

    The command must hand on bytes as they are, both ways and at once (no terminal, no buffering by lines).
    """

    link_may_return = False

    def __init__(self, before: Callable[[Host], Sequence[str]], env: Mapping[str, str] | None = None) -> None:
        self._before = before
        self._env = env

    def connect(self, host: Host) -> LocalStream:
        """See Transport."""
        try:
            return start([*self._before(host), *bundle.argv(host.python or "python3")], self._env)
        except OSError as error:
            raise BootstrapFailed(host.name, f"cannot start {error.filename}: {error.strerror}") from None

    def describe(self, host: Host) -> str:
        """See Transport."""
        return shlex.join([*self._before(host), "sh"])

    def close(self) -> None:
        """Nothing is shared."""
