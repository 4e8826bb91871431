import os
import sys
import threading
import time

import pytest
from agents import alive

from launcher import protocol
from launcher.errors import BootstrapFailed
from launcher.hostfile import Host
from launcher.nodes import Nodes
from launcher.transport.channel import Channel
from launcher.transport.local import LocalTransport

HOST = Host("localhost", (0,))


def executable(path, text):
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


def test_no_interpreter():
    """An interpreter that is not there is told with its path."""
    with pytest.raises(BootstrapFailed, match="localhost: cannot start /nowhere/python: No such file"):
        LocalTransport("/nowhere/python").connect(HOST)


def test_an_interpreter_that_is_none(tmp_path):
    """What ends without becoming an agent is told with its status and its last words."""
    python = executable(tmp_path / "python", "#!/bin/sh\necho hello\necho this is no python >&2\nexit 3\n")
    stream = LocalTransport(python).connect(HOST)
    with pytest.raises(BootstrapFailed) as caught:
        Channel("localhost", stream, lambda channel, message: None).greet()
    for text in ("status 3", "this is no python", "hello"):
        assert text in str(caught.value)


def test_close_wakes_a_reader(tmp_path):
    """A peer that never says anything and never ends does not hold its reader once the stream is closed."""
    python = executable(tmp_path / "python", "#!/bin/sh\nexec sleep 30\n")
    stream = LocalTransport(python).connect(HOST)
    threading.Timer(0.05, stream.close).start()
    began = time.monotonic()
    assert stream.read(100) == b""
    assert time.monotonic() - began < 5
    assert stream.read(100) == b""
    stream.close()
    with pytest.raises(BrokenPipeError):
        stream.write(b"x")
    stream._process.kill()
    assert "-9" in stream.explain()


@pytest.mark.slow
def test_an_agent_comes_and_goes():
    """The host's own python is used, facts arrive, Bye ends it with no process left."""
    nodes = Nodes(LocalTransport("/nowhere/python"))
    nodes.open_all([Host("localhost", (0,), python=sys.executable)])
    facts = nodes.facts["localhost"]
    assert os.path.realpath(facts["executable"]) == os.path.realpath(sys.executable)
    assert alive([facts["pid"]])
    assert nodes.ask({"localhost": ("source_address", {"peer": "127.0.0.1"})}) == {"localhost": "127.0.0.1"}
    nodes.close()
    assert not alive([facts["pid"]])


@pytest.mark.slow
def test_a_question_that_fails_is_an_answer():
    """An unknown question does not end the agent."""
    nodes = Nodes(LocalTransport())
    nodes.open_all([HOST])
    nodes.tell("localhost", protocol.Ask(1, "invented", {}))
    nodes.tell("localhost", protocol.Ask(2, "pick_port", {"address": "127.0.0.1"}))
    answers = [message for _, message in (nodes.next(10.0), nodes.next(10.0))]
    assert [(answer.id, answer.error is None) for answer in answers] == [(1, False), (2, True)]
    nodes.close()
