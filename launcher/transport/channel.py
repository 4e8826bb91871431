"""One node's agent as the controller sees it: messages out, messages in, and the end of it, on two threads.

Neither thread decides anything. Writing has a thread of its own because a node that has stopped reading must not stop
the controller.
"""

from __future__ import annotations

import queue
import secrets
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from launcher import protocol
from launcher.errors import BootstrapFailed, ConnectFailed, ProtocolError
from launcher.transport import bundle
from launcher.transport.base import Stream

READ_BYTES = 1 << 18


@dataclass(frozen=True)
class Closed:
    """The agent is gone or makes no sense; nothing more comes from it."""

    why: str


Deliver = Callable[["Channel", Any], None]


class Channel:
    """Frames over one stream. `deliver(channel, message)` is called from the reading thread, lastly with Closed."""

    def __init__(self, host: str, stream: Stream, deliver: Deliver) -> None:
        self.host = host
        self._stream = stream
        self._deliver = deliver
        self._outgoing: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()

    def greet(self) -> protocol.Hello:
        """Ship the agent and wait for its hello; then messages flow. Blocks as long as the stream lets it.

        Raises BootstrapFailed when the remote side ends without having become an agent, ProtocolError when it is
        one of another version.
        """
        nonce = secrets.token_hex(bundle.NONCE_CHARS // 2)
        reader = protocol.FrameReader(nonce)
        try:
            self._stream.write(bundle.payload() + nonce.encode("ascii"))
        except OSError:
            pass  # it has ended already: reading finds what it said before
        while True:
            data = self._stream.read(READ_BYTES)
            if not data:
                raise self._failed(reader, "it ended before the agent answered")
            try:
                messages = list(reader.feed(data))
            except protocol.BadFrame as error:
                self._stream.close()
                raise ProtocolError(self.host, f"the agent makes no sense: {error}") from None
            if messages:
                break
        hello = messages[0]
        if not isinstance(hello, protocol.Hello) or hello.version != protocol.VERSION:
            self._stream.close()
            raise ProtocolError(
                self.host, f"the agent begins with {hello!r:.80}, not with hello {protocol.VERSION}"
            )
        for name, work in (("read", lambda: self._read(reader, messages[1:])), ("write", self._write)):
            threading.Thread(target=work, name=f"{name} {self.host}", daemon=True).start()
        return hello

    def send(self, message: protocol.Message) -> None:
        """Queue a message. Never blocks; a dead node is told of by Closed, not here."""
        self._outgoing.put(protocol.encode(message))

    def close(self) -> None:
        """End the connection after what is queued has been written."""
        self._outgoing.put(None)

    def _failed(self, reader: protocol.FrameReader, what: str) -> BootstrapFailed | ConnectFailed:
        noise = reader.noise.decode("utf-8", "replace").strip()
        details = [self._stream.explain(), f"the login shell printed:\n{noise[-1000:]}" if noise else ""]
        self._stream.close()
        text = "; ".join([f"could not start python3 there: {what}", *filter(None, details)])
        return BootstrapFailed(self.host, text)

    def _read(self, reader: protocol.FrameReader, early: list[Any]) -> None:
        try:
            for message in early:
                self._deliver(self, message)
            while data := self._stream.read(READ_BYTES):
                for message in reader.feed(data):
                    self._deliver(self, message)
        except protocol.BadFrame as error:
            self._deliver(self, Closed(f"the agent's answers make no sense: {error}"))
            self._stream.close()
            return
        self._deliver(self, Closed(self._stream.explain() or "the connection ended"))

    def _write(self) -> None:
        while (frame := self._outgoing.get()) is not None:
            try:
                self._stream.write(frame)
            except OSError:
                break  # the reading thread learns the same and says so
        self._stream.close()
