import queue

import pytest
from fakes import FakeTransport, ScriptedAgent

from launcher import protocol
from launcher.errors import AuthFailed, ConnectFailed, PreflightError, TransportError
from launcher.hostfile import Host
from launcher.nodes import LOG_PIECES, Nodes, Unanswered, together
from launcher.transport.channel import Closed

A, B = Host("a", (0,)), Host("b", (0,))


@pytest.fixture
def pair():
    agents = ScriptedAgent(), ScriptedAgent()
    nodes = Nodes(FakeTransport(a=[agents[0]], b=[agents[1]]))
    nodes.open_all([A, B])
    yield nodes, *agents
    nodes.close(wait_s=0.1)


def test_ask_many(pair):
    """One question a host, all answers; facts were learned while opening."""
    nodes, *_ = pair
    assert nodes.ask({"a": ("pick_port", {}), "b": ("other", {})}) == {"a": 12345, "b": None}
    assert set(nodes.facts) == {"a", "b"}


def test_what_else_arrives_is_kept_in_order(pair):
    """Messages that come while an answer is awaited are delivered later, in the order in which they came."""
    nodes, a, _ = pair
    before = [protocol.Idle(n) for n in range(5)]
    a.answer = lambda ask: a.stream.say(*before, protocol.Answer(ask.id, 1, None), protocol.Idle(5))
    assert nodes.ask({"a": ("pick_port", {})}) == {"a": 1}
    assert [nodes.next(5.0) for _ in range(6)] == [("a", protocol.Idle(n)) for n in range(6)]


def test_the_end_of_a_host_that_was_not_asked(pair):
    """It does not spoil the answer, and it is told afterwards."""
    nodes, _a, b = pair
    b.stream.end("cut")
    assert nodes.ask({"a": ("pick_port", {})}) == {"a": 12345}
    assert nodes.next(5.0) == ("b", Closed("cut"))


def test_the_end_of_a_host_that_was_asked(pair):
    """A host that goes instead of answering is named."""
    nodes, a, _ = pair
    a.answer = lambda ask: a.stream.end("cut")
    with pytest.raises(ConnectFailed, match="a: cut"):
        nodes.ask({"a": ("pick_port", {})})


def test_silence_and_refusal(pair):
    """No answer in time names the question; an answer that is an error is told."""
    nodes, a, _ = pair
    a.answer = lambda ask: None
    with pytest.raises(ConnectFailed, match="a: no answer to 'pick_port'"):
        nodes.ask({"a": ("pick_port", {})}, limit_s=0.05)
    a.answer = lambda ask: a.stream.say(protocol.Answer(ask.id, None, "no free port"))
    with pytest.raises(PreflightError, match="a: no free port"):
        nodes.ask({"a": ("pick_port", {})})


def test_gather_goes_on_without_the_missing(pair):
    """A refusal and the end of a host stand for their answers; one that is gone is not waited for."""
    nodes, a, b = pair
    usual = a._react
    a._react = lambda message: (
        a.stream.say(protocol.Answer(message.id, None, "disk full"))
        if isinstance(message, protocol.Ask)
        else usual(message)
    )
    b._react = lambda message: b.stream.end("cut")
    questions = {"a": ("pick_port", {}), "b": ("pick_port", {})}
    refused = Unanswered("disk full", lost=False)
    assert nodes.gather(questions) == {"a": refused, "b": Unanswered("cut", lost=True)}
    assert nodes.gather(questions) == {"a": refused, "b": Unanswered("its agent is gone", lost=True)}


def test_open_each_keeps_the_others():
    """A host that cannot be opened is told with its error; the others answer."""
    nodes = Nodes(FakeTransport(a=[ScriptedAgent()], b=[]))
    assert list(nodes.open_each([A, B])) == ["b"]
    assert nodes.ask({"a": ("pick_port", {})}) == {"a": 12345}
    nodes.close(wait_s=1.0)


def test_one_failure_closes_the_rest():
    """When a host cannot be opened, the others' agents are sent away again."""
    agent = ScriptedAgent()
    nodes = Nodes(FakeTransport(a=[agent], b=[]))
    with pytest.raises(ConnectFailed, match="b: connection refused"):
        nodes.open_all([A, B])
    assert agent.stream.gone
    assert agent.got(protocol.Bye)


def test_dropped_hosts_are_told_nothing(pair):
    """A host that was dropped gets no messages, and its end is not news."""
    nodes, _a, _ = pair
    nodes.drop("a")
    nodes.tell("a", protocol.Ping(0))
    nodes.drop("a")
    with pytest.raises(queue.Empty):
        nodes.next(0.05)


def test_together():
    """Many failures are one error: grouped by reason, hosts folded, of the common kind where there is one."""
    refused = [ConnectFailed(f"n{i:02}", f"no route to n{i:02}") for i in range(1, 5)]
    error = together([*refused, AuthFailed("x", "permission denied")])
    assert type(error) is TransportError
    assert "n[01-04]" in str(error)
    assert "x: permission denied" in str(error)
    assert type(together(refused)) is ConnectFailed
    assert together(refused[:1]) is refused[0]


def test_logs_wait_for_room(pair):
    """A node that sends more log bytes than are taken in fills no memory: its link waits, and all of it arrives."""
    nodes, agent, _ = pair
    pieces = 3 * LOG_PIECES
    for number in range(pieces):
        agent.stream.say_bytes(protocol.encode_log(1, 0, number, b"x"))
    for number in range(pieces):
        assert nodes.inbox.qsize() <= LOG_PIECES
        _, message = nodes.next(5)
        assert message.offset == number
