"""Fakes at the launcher's real seams: a clock that jumps, and agents that are scripts instead of processes."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any

from launcher import protocol
from launcher.errors import ConnectFailed
from launcher.hostfile import Host
from launcher.plan import label
from launcher.protocol import Answer, Ask, Configure, Exited, Hello, Idle, Message, Start, Started, Stop
from launcher.transport import bundle

FACTS = {"hostname": "h", "devices": 0, "ssh_address": "192.0.2.7", "interfaces": {"eth0": ["192.0.2.7"]}}


class FakeClock:
    """Time that passes only while everybody waits."""

    QUIET_S = 0.03  # real time without a message that counts as everybody waiting

    def __init__(self) -> None:
        self.t = 1000.0

    def __call__(self) -> float:
        return self.t

    def inbox(self) -> JumpingQueue:
        return JumpingQueue(self)


class JumpingQueue(queue.SimpleQueue):  # type: ignore[type-arg]
    """A queue whose waiting reader moves the fake clock instead of losing real time."""

    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        try:
            return super().get(timeout=self._clock.QUIET_S)
        except queue.Empty:
            self._clock.t += timeout or 0.0
            raise


class MemoryStream:
    """A Stream (launcher.transport.base) with an agent at its other end that is a function.

    `react(stream, message)` is called for each message from the controller; it answers with `stream.say`.
    """

    shipped: str | None = None

    def __init__(self, react: Callable[[MemoryStream, Any], None], hello: Message | None = None) -> None:
        self._react = react
        self._hello = Hello(protocol.VERSION, FACTS) if hello is None else hello
        self._reader: protocol.FrameReader | None = None
        self._incoming = bytearray()
        self._outgoing: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._explanation = ""
        self.received: list[Any] = []
        self.gone = False

    def say(self, *messages: Message) -> None:
        for message in messages:
            self._outgoing.put(protocol.encode(message))

    def say_bytes(self, data: bytes) -> None:
        self._outgoing.put(data)

    def end(self, why: str = "") -> None:
        """The agent is gone, or the link is."""
        self._explanation, self.gone = why, True
        self._outgoing.put(b"")

    def read(self, size: int) -> bytes:
        return self._outgoing.get()

    def write(self, data: bytes) -> None:
        if self.gone:
            raise BrokenPipeError
        if self._reader is None:
            self._begin(data)
            return
        for message in self._reader.feed(data):
            self.received.append(message)
            self._react(self, message)

    def _begin(self, data: bytes) -> None:
        """The agent's code and the nonce come first, in one piece or several; the answer is noise, marker, hello."""
        self._incoming += data
        whole = len(bundle.payload()) + bundle.NONCE_CHARS
        if len(self._incoming) >= whole:
            nonce = bytes(self._incoming[whole - bundle.NONCE_CHARS : whole]).decode()
            self._reader = protocol.FrameReader()
            self._outgoing.put(b"Welcome to h\n" + protocol.marker(nonce))
            self.say(self._hello)

    def close(self) -> None:
        if not self.gone:
            self.end()

    def explain(self) -> str:
        return self._explanation


class ScriptedAgent:
    """Behaves like an agent whose ranks start and then do what `play(agent, start)` makes them do.

    Every override is optional: the default ranks run until they are stopped.
    """

    def __init__(self, play: Callable[[ScriptedAgent, Start], None] | None = None) -> None:
        self.play = play or (lambda agent, start: None)
        self.stream: MemoryStream
        self.running: set[int] = set()
        self.attempt = 0
        self.mute = False  # does not answer any more, though its link stands

    def open(self) -> MemoryStream:
        self.stream = MemoryStream(lambda stream, message: self._react(message))
        return self.stream

    def exit(self, rank: int, code: int | None, signal: str | None = None) -> None:
        if rank in self.running:
            self.running.discard(rank)
            self.stream.say(Exited(self.attempt, rank, code, signal, f"last words of {rank}", None))

    def report(self, rank: int, kind: str, **fields: Any) -> None:
        self.stream.say(protocol.Record(self.attempt, rank, {"kind": kind, **fields}))

    def idle(self) -> None:
        self.stream.say(Idle(self.attempt))

    def finish(self, start: Start) -> None:
        """All ranks do their work and leave in order."""
        for order in start.ranks:
            self.report(order["rank"], "done")
            self.exit(order["rank"], 0)
        self.idle()

    def answer(self, ask: Ask) -> None:
        self.stream.say(Answer(ask.id, 12345 if ask.question == "pick_port" else None, None))

    def _react(self, message: Any) -> None:
        if self.mute:
            return
        if isinstance(message, Ask):
            self.answer(message)
        elif isinstance(message, Start):
            self.attempt = message.attempt
            for order in message.ranks:
                self.running.add(order["rank"])
                self.stream.say(Started(message.attempt, order["rank"], 100 + order["rank"]))
            self.play(self, message)
        elif isinstance(message, Stop):
            for rank in sorted(self.running):
                self.exit(rank, None, "SIGTERM" if message.grace_s else "SIGKILL")
            self.idle()
        elif isinstance(message, protocol.TakeStacks):
            looks = {str(rank): {"state": "S", "stack": "", "note": "no stack"} for rank in self.running}
            self.stream.say(protocol.StacksTaken(self.attempt, looks))
        elif isinstance(message, protocol.Ping):
            self.stream.say(protocol.Heartbeat(self.attempt, {}, 0))
        elif isinstance(message, protocol.Bye):
            self.stream.end("the agent ended with status 0")

    def got(self, kind: type[Any]) -> list[Any]:
        """Messages of one kind that the controller has sent to the present agent."""
        return [message for message in self.stream.received if isinstance(message, kind)]

    @property
    def configured(self) -> Configure:
        return self.got(Configure)[0]


class FakeTransport:
    """A Transport of scripted agents: host label -> one agent for each time it is connected to."""

    link_may_return = False

    def __init__(self, **agents: list[ScriptedAgent]) -> None:
        self._agents = {host: list(given) for host, given in agents.items()}
        self._lock = threading.Lock()

    def connect(self, host: Host) -> MemoryStream:
        with self._lock:
            waiting = self._agents[label(host)]
            if not waiting:
                raise ConnectFailed(label(host), "connection refused")
            return waiting.pop(0).open()

    def close(self) -> None:
        pass
