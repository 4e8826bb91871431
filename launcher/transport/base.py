"""The seam between controller and nodes: a transport opens a two-way byte stream to a fresh agent on a host."""

from __future__ import annotations

from typing import Protocol

from launcher.hostfile import Host


class Stream(Protocol):
    """Bytes to and from one agent's stdin and stdout. `read` and `write` may be called from different threads.

    shipped: the nonce of an agent whose code was sent ahead; None where it is still to be sent.
    """

    shipped: str | None

    def read(self, size: int) -> bytes:
        """Block until at least one byte is there; b"" when the other side is gone, for whatever reason."""

    def write(self, data: bytes) -> None:
        """Write all of `data`. Raises OSError when the other side is gone."""

    def close(self) -> None:
        """End the connection; a blocked `read` returns b"". Idempotent."""

    def explain(self) -> str:
        """What is known about why it ended: last stderr lines, exit status of the remote command, or ""."""


class Transport(Protocol):
    """Starts agents. Implementations: `local.LocalTransport`, `ssh.SshTransport`."""

    link_may_return: bool  # the end of a stream need not be the end of the agent

    def connect(self, host: Host) -> Stream:
        """Start the bootstrap command (`bundle.command`) on `host` and return its stream; nothing is sent yet.

        Called from many threads at once. Raises a TransportError; never prompts and never waits without limit.
        """

    def describe(self, host: Host) -> str:
        """The command line by which a person would get to `host` the same way, or "". Contacts nobody."""

    def close(self) -> None:
        """Release what is shared between connections (jump hosts, threads)."""
