"""One controller and a thousand nodes, at the transport's seam: agents are fakes in this process, time is simulated.

What it costs is printed (`pytest -s`) and kept in docs/benchmarks.md; here only sanity is held, not speed.
"""

from __future__ import annotations

import time

import psutil
import pytest
from fakes import FakeClock, FakeTransport, ScriptedAgent

from launcher import events, protocol
from launcher.controller import Controller, Order
from launcher.hostfile import Host
from launcher.journal import read_lines, replay
from launcher.nodes import Nodes
from launcher.plan import NodeFacts, Program, place
from launcher.rundir import RunDir

NODES, SLOTS, STEPS = 1000, 8, 30
POLICY = {"max_restarts": 2, "heartbeat_timeout_s": 30.0, "lease_s": 60.0, "grace_s": 30.0, "script": False}


class Screen:
    """Shows nothing; notes the controller's own CPU time at each simulated second."""

    def __init__(self):
        self.cpu_s = {}

    def log(self, host, rank, data):
        pass

    def metrics(self, line):
        pass

    def state(self, state):
        self.cpu_s.setdefault(int(state.t), time.thread_time())

    def note(self, text):
        pass


class SteadyAgent(ScriptedAgent):
    """Answers each ping with a heartbeat in which every rank is a step further; its ranks end after the last one."""

    def __init__(self, falls: bool) -> None:
        super().__init__(SteadyAgent.begin)
        self._falls = falls  # its first rank exits with code 3 at step 10 of the first attempt
        self._start: protocol.Start
        self._step = 0

    def begin(self, start: protocol.Start) -> None:
        self._start, self._step = start, 10 * (start.attempt - 1)

    def _react(self, message) -> None:
        if not isinstance(message, protocol.Ping) or not self.running:
            super()._react(message)
            return
        self._step += 1
        steps = {str(rank): self._step for rank in self.running}
        self.stream.say(protocol.Heartbeat(self.attempt, steps, 0))
        if self._falls and self.attempt == 1 and self._step == 10:
            self.exit(min(self.running), 3)
        elif self._step == STEPS:
            self.finish(self._start)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_thousand_nodes(tmp_path):
    """8,000 ranks start, go 10 steps, lose one, restart, and finish: the right story, in bounded work and memory."""
    agents = {f"n{k:04d}": [SteadyAgent(falls=k == NODES // 2)] for k in range(NODES)}
    hosts = tuple(Host(name, tuple(range(SLOTS))) for name in agents)
    clock = FakeClock()
    nodes = Nodes(FakeTransport(**agents))
    nodes.inbox = clock.inbox()
    nodes.open_all(hosts)
    run = RunDir(tmp_path / "run")
    run.create()
    placement = place(hosts, lambda rank: {"dp_shard": rank})
    ranks = [{k: v for k, v in vars(rank).items() if k != "slot"} for rank in placement.ranks]
    places = [{"host": name, "slots": SLOTS} for name in agents]
    controller = {"host": "c", "pid": 1, "created": 0.0}
    created = events.RunCreated(0.0, "run", "run", STEPS, ranks, POLICY, controller, "0", places)
    program = Program(("x.py",), "run", "token", "/", {})
    facts = {name: NodeFacts("python3", "192.0.2.1", None) for name in agents}
    order = Order(run, created, program, placement, hosts, facts, lambda held: (program, placement))
    before_bytes, cpu_s, screen = psutil.Process().memory_info().rss, time.thread_time(), Screen()
    state = Controller(order, nodes, screen, clock).run()
    cpu_s = time.thread_time() - cpu_s
    grown_bytes = psutil.Process().memory_info().rss - before_bytes
    nodes.close(wait_s=5)
    steady_s = (screen.cpu_s[9] - screen.cpu_s[3]) / 6
    print(f"\ncontroller: {cpu_s:.1f} s of CPU in {state.t:.0f} simulated seconds, {steady_s:.3f} a steady second, "
          f"{grown_bytes / 1e6:.0f} MB more, journal {run.events.stat().st_size / 1e6:.1f} MB")  # fmt: skip
    assert (state.state, state.exit_code, state.attempt) == ("finished", 0, 2)
    assert {rank.state for rank in state.ranks} == {"done"}
    assert [state.first_failure.rank, state.first_failure.exit_code] == [NODES // 2 * SLOTS, 3]
    assert grown_bytes < 1 << 30
    told = [line["event"] for line in read_lines(run.events)]
    assert told.count("RankStarted") == 2 * NODES * SLOTS
    assert replay(run).step == STEPS
