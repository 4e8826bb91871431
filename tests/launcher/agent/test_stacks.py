"""Real processes are looked at: what they do, and that looking ends none of them."""

from __future__ import annotations

import os
import signal

import pytest
from agents import LiveAgent, alive

from launcher.agent.stacks import catches, state_of
from launcher.protocol import StacksTaken, TakeStacks

pytestmark = pytest.mark.slow

ANSWERS = """
import time, distperf.contract
distperf.contract.reporter()
def here():
    print("up", flush=True)
    time.sleep(60)
here()
"""
DEAF = "import time; print('up', flush=True); time.sleep(60)"
OWN_HANDLER = """
import signal, time, distperf.contract
signal.signal(signal.SIGUSR2, lambda *_: print("mine", flush=True))
distperf.contract.reporter()
print("up", flush=True)
time.sleep(60)
"""


def looks(agent):
    agent.channel.send(TakeStacks(1))
    return agent.wait(StacksTaken).looks


def test_ranks_with_and_without_a_handler():
    """A rank that called distperf tells its stack; the signal is sent to no other, which would die of it."""
    with LiveAgent() as agent:
        agent.start(ANSWERS, DEAF, OWN_HANDLER, env={"PYTHONPATH": os.pathsep.join(__import__("sys").path)})
        for rank in range(3):
            agent.wait_log(b"up", rank)
        found = looks(agent)
        assert "in here" in found["0"]["stack"]
        assert "has no handler" in found["1"]["note"]
        assert "has no handler" in found["2"]["note"]
        assert sorted(alive(agent.pids())) == sorted(agent.pids())
        assert b"mine" not in agent.log(2)


def test_a_stopped_rank_is_not_waited_for_and_ends_at_once():
    """Its state tells; SIGTERM reaches it although it is stopped."""
    with LiveAgent() as agent:
        agent.start(DEAF)
        agent.wait_log(b"up")
        pid = agent.pids()[0]
        os.kill(pid, signal.SIGSTOP)
        while state_of(pid) != "T":
            pass
        assert looks(agent)["0"]["state"] == "T"


def test_catches():
    """The kernel says which signals a process handles."""
    assert catches(os.getpid(), signal.SIGINT)
    assert not catches(os.getpid(), signal.SIGURG)
    assert state_of(os.getpid()) == "R"
