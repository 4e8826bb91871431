"""One node's agent as the controller sees it: messages out, messages in, and the end of it, on two threads.

Neither thread decides anything. Writing has a thread of its own because a node that has stopped reading must not stop
the controller.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable
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


class Talk:
    """What controller and one agent have said to each other, over all links: enough to go on over a new one."""

    def __init__(self) -> None:
        self.sent = protocol.Kept()
        self.received = 0
        self._attempt = 0
        self._logs: dict[str, int] = {}

    def heard(self, message: Any) -> None:
        """Take note of what has arrived."""
        self.received += protocol.counted(message)
        if isinstance(message, protocol.Heartbeat):
            self.sent.acknowledge(message.received)
        elif isinstance(message, protocol.LogBytes):
            if message.attempt != self._attempt:
                self._attempt, self._logs = message.attempt, {}
            self._logs[str(message.rank)] = message.offset + len(message.data)

    def relay(self, run_id: str, token: str) -> protocol.Relay:
        """Ask a fresh agent for the one that this talk was with."""
        return protocol.Relay(run_id, token, self._attempt, dict(self._logs))

    def attach(self) -> protocol.Attach:
        """Tell that one where to go on."""
        return protocol.Attach(self.received, self._attempt, dict(self._logs))


class Channel:
    """Frames over one stream. `deliver(channel, message)` is called from the reading thread, lastly with Closed."""

    def __init__(self, host: str, stream: Stream, deliver: Deliver, talk: Talk | None = None) -> None:
        self.host = host
        self.talk = talk or Talk()
        self._stream = stream
        self._deliver = deliver
        self._outgoing: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._reader = protocol.FrameReader()
        self._early: deque[Any] = deque()  # arrived with a message that was waited for

    def greet(self) -> protocol.Hello:
        """Ship the agent and wait for its hello. Blocks as long as the stream lets it; `start` or `resume` follow.

        Raises BootstrapFailed when the remote side ends without having become an agent, ProtocolError when it is
        one of another version.
        """
        try:
            self._reader = protocol.FrameReader(self._stream.shipped or bundle.ship(self._stream.write))
        except OSError:  # it has ended already: reading finds what it said before
            self._reader = protocol.FrameReader("")
        hello = self._next()
        if not isinstance(hello, protocol.Hello) or hello.version != protocol.VERSION:
            self._stream.close()
            raise ProtocolError(
                self.host, f"the agent begins with {hello!r:.80}, not with hello {protocol.VERSION}"
            )
        return hello

    def resume(self, relay: protocol.Relay) -> int | None:
        """Instead of `start`: find the agent of an earlier link; how many messages it has of us, None when it is dead.

        What a dead one left of its ranks' logs is delivered. `start` goes on with a living one. Raises as `greet`.
        """
        self._stream.write(protocol.encode(relay))
        while not isinstance(message := self._next(), protocol.Relayed):
            self._deliver(self, message)
        if not message.found:
            self._stream.close()
            return None
        self._stream.write(protocol.encode(self.talk.attach()))
        attached = self._next()
        if not isinstance(attached, protocol.Attached):
            raise ProtocolError(self.host, f"the agent goes on with {attached!r:.80}")
        return attached.received

    def ask(self, ask: protocol.Ask) -> protocol.Answer:
        """Before `start`: what the agent answers. Raises as `greet`."""
        frame = protocol.encode(ask)
        self.talk.sent.add(frame)
        self._stream.write(frame)
        while not isinstance(answer := self._next(), protocol.Answer):
            self._take([answer])
        self.talk.heard(answer)
        return answer

    def start(self, again: Iterable[bytes] = ()) -> None:
        """Let messages flow both ways, first the frames that have to be sent again."""
        for frame in again:
            self._outgoing.put(frame)
        for name, work in (("read", self._read), ("write", self._write)):
            threading.Thread(target=work, name=f"{name} {self.host}", daemon=True).start()

    def _next(self) -> Any:
        """The next message, before the threads run."""
        while not self._early:
            data = self._stream.read(READ_BYTES)
            if not data:
                raise self._failed("it ended before the agent answered")
            try:
                self._early.extend(self._reader.feed(data))
            except protocol.BadFrame as error:
                self._stream.close()
                raise ProtocolError(self.host, f"the agent makes no sense: {error}") from None
        return self._early.popleft()

    def send(self, message: protocol.Message) -> None:
        """Queue a message. Never blocks; a dead node is told of by Closed, not here."""
        frame = protocol.encode(message)
        if protocol.counted(message):
            self.talk.sent.add(frame)
        self._outgoing.put(frame)

    def abort(self) -> None:
        """End the connection now."""
        self._stream.close()

    def close(self) -> None:
        """End the connection after what is queued has been written."""
        self._outgoing.put(None)

    def _failed(self, what: str) -> BootstrapFailed | ConnectFailed:
        noise = self._reader.noise.decode("utf-8", "replace").strip()
        details = [self._stream.explain(), f"the login shell printed:\n{noise[-1000:]}" if noise else ""]
        self._stream.close()
        text = "; ".join([f"could not start python3 there: {what}", *filter(None, details)])
        return BootstrapFailed(self.host, text)

    def _read(self) -> None:
        try:
            self._take(self._early)
            while data := self._stream.read(READ_BYTES):
                self._take(self._reader.feed(data))
        except protocol.BadFrame as error:
            self._deliver(self, Closed(f"the agent's answers make no sense: {error}"))
            self._stream.close()
            return
        self._deliver(self, Closed(self._stream.explain() or "the connection ended"))

    def _take(self, messages: Iterable[Any]) -> None:
        for message in messages:
            self.talk.heard(message)
            self._deliver(self, message)

    def _write(self) -> None:
        while (frame := self._outgoing.get()) is not None:
            try:
                self._stream.write(frame)
            except OSError:
                break  # the reading thread learns the same and says so
        self._stream.close()
