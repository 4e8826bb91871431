import queue

import pytest
from fakes import MemoryStream, ScriptedAgent

from launcher import protocol
from launcher.errors import BootstrapFailed, ProtocolError
from launcher.transport.channel import Channel, Closed


def channel(stream):
    inbox = queue.SimpleQueue()
    return Channel("gpu-a", stream, lambda _, message: inbox.put(message)), inbox


class Peer(MemoryStream):
    """A peer that never becomes an agent: it says something, then ends."""

    def __init__(self, *pieces, why=""):
        super().__init__(lambda stream, message: None)
        self._pieces, self._why = pieces, why

    def _begin(self, data):
        if not self.gone:
            for piece in self._pieces:
                self.say_bytes(piece)
            self.end(self._why)


def test_greets_through_noise():
    """What a login shell prints does not disturb; messages flow both ways after hello."""
    stream = MemoryStream(lambda stream, message: stream.say(protocol.Answer(message.id, "x", None)))
    link, inbox = channel(stream)
    assert link.greet().facts["hostname"] == "h"
    link.start()
    link.send(protocol.Ask(7, "q", {}))
    assert inbox.get(timeout=5) == protocol.Answer(7, "x", None)
    link.close()
    assert isinstance(inbox.get(timeout=5), Closed)


def test_noise_and_no_agent():
    """A peer that only talks: the error holds what it printed and why it ended."""
    link, _ = channel(
        Peer(b"This account is ", b"currently not available.\n", why="the command ended with status 1")
    )
    with pytest.raises(BootstrapFailed) as caught:
        link.greet()
    assert caught.value.host == "gpu-a"
    assert "This account is currently not available." in str(caught.value)
    assert "status 1" in str(caught.value)


def test_ends_at_once():
    """Status and stderr of a peer that ends without a word are in the error."""
    link, _ = channel(Peer(why="ended with status 127: sh: python3: not found"))
    with pytest.raises(
        BootstrapFailed, match=r"gpu-a: could not start python3 there.*127.*python3: not found"
    ):
        link.greet()


def test_gone_before_anything_is_sent():
    """A link that breaks under the first write is the same kind of error."""
    stream = MemoryStream(lambda stream, message: None)
    stream.end("reset")
    link, _ = channel(stream)
    with pytest.raises(BootstrapFailed, match="reset"):
        link.greet()


@pytest.mark.parametrize("first", [protocol.Hello(protocol.VERSION + 1, {}), protocol.Ping(0)])
def test_another_version(first):
    """An agent of another version, or one that begins with something else, is refused and its link closed."""
    stream = MemoryStream(lambda stream, message: None, hello=first)
    link, _ = channel(stream)
    with pytest.raises(ProtocolError, match="gpu-a"):
        link.greet()
    assert stream.gone


def test_garbage_instead_of_hello():
    """Garbage after the marker is the peer's fault, told as such."""

    class Garbler(MemoryStream):
        def say(self, *messages):
            self.say_bytes(b"\xff" * 9)

    link, _ = channel(Garbler(lambda stream, message: None))
    with pytest.raises(ProtocolError, match="no sense"):
        link.greet()


def test_garbage_later():
    """Garbage frames after hello end the channel, after what came whole."""
    agent = ScriptedAgent()
    link, inbox = channel(agent.open())
    link.greet()
    link.start()
    agent.stream.say_bytes(protocol.encode(protocol.Idle(1)) + b"\0\0\0\0\0\0\0\0\0")
    assert inbox.get(timeout=5) == protocol.Idle(1)
    assert "make no sense" in inbox.get(timeout=5).why
    assert inbox.empty()


def test_messages_with_the_hello_are_not_lost():
    """An agent may say more in the same breath as hello."""

    class Eager(MemoryStream):
        def say(self, *messages):
            self.say_bytes(b"".join(map(protocol.encode, (*messages, protocol.Idle(3)))))

    link, inbox = channel(Eager(lambda stream, message: None))
    link.greet()
    link.start()
    assert inbox.get(timeout=5) == protocol.Idle(3)


def test_the_end_is_explained():
    """What is known about why the agent is gone comes with Closed, lastly and once."""
    agent = ScriptedAgent()
    link, inbox = channel(agent.open())
    link.greet()
    link.start()
    agent.stream.end("the agent ended with status -9")
    assert inbox.get(timeout=5) == Closed("the agent ended with status -9")
    link.send(protocol.Ping(0))  # to nobody; must not raise
    link.close()
    assert inbox.empty()
