"""Real processes are looked at: what they do, and that looking ends none of them."""

from __future__ import annotations

import os
import signal
import time

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
BUSY = """
import json, threading, distperf.contract
distperf.contract.reporter()
def work(depth):
    json.dumps(list(range(20)))
    depth and work(depth - 1)
def forever():
    while True:
        work(20)
threading.Thread(target=forever, daemon=True).start()
print("up", flush=True)
forever()
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


def test_a_rank_whose_threads_are_busy_lives_on():
    """A look is harmless at any time: frames come and go on two threads while a hundred stacks are written."""
    with LiveAgent() as agent:
        agent.start(BUSY, env={"PYTHONPATH": os.pathsep.join(__import__("sys").path)})
        agent.wait_log(b"up")
        for _ in range(100):
            os.kill(agent.pids()[0], signal.SIGUSR2)
            time.sleep(0.002)
        assert "in work" in looks(agent)["0"]["stack"]
        assert alive(agent.pids()) == agent.pids()


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
