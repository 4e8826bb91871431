import json
import os
import signal

import pytest
from fakes import FakeClock, FakeTransport, ScriptedAgent

from distperf.errors import BatchError
from launcher import events, protocol
from launcher.controller import Controller, Order
from launcher.errors import RunFolderError
from launcher.hostfile import Host
from launcher.journal import read_lines, replay
from launcher.nodes import Nodes
from launcher.plan import NodeFacts, Program, place, planned_ranks
from launcher.rundir import RunDir

POLICY = {"max_restarts": 2, "heartbeat_timeout_s": 2.0, "lease_s": 4.0, "grace_s": 3.0, "script": False}


class Screen:
    """Remembers what it was shown."""

    def __init__(self):
        self.notes, self.logs, self.states = [], [], []

    def log(self, host, rank, data):
        self.logs.append((host, rank, data))

    def metrics(self, line):
        pass

    def state(self, state):
        if not self.states or self.states[-1] != state.state:
            self.states.append(state.state)

    def note(self, text):
        self.notes.append(text)


@pytest.fixture
def launch(tmp_path):
    """launch(a=[agents], b=[agents]) runs two ranks a host to the end, but for `spares`; real time hardly passes."""
    opened = []

    def placed(*names):
        return place(tuple(Host(name, (0, 1)) for name in names), lambda rank: {"dp_shard": rank})

    def run(*, policy=(), spares=0, **agents):
        hosts = tuple(Host(name, (0, 1)) for name in agents)
        placement = placed(*list(agents)[: len(agents) - spares])
        clock = FakeClock()
        nodes = Nodes(FakeTransport(**agents))
        nodes.inbox = clock.inbox()
        nodes.open_all(hosts)
        opened.append(nodes)
        folder = RunDir(tmp_path / "run")
        folder.create()
        program = Program(("x.py",), "run", "token", "/", {})
        created = events.RunCreated(
            0.0,
            "run",
            "run",
            9,
            planned_ranks(placement),
            {**POLICY, **dict(policy)},
            {"host": "c", "pid": 1, "created": 0.0},
            "0",
            [{"host": name, "slots": 2} for name in agents],
        )

        def again(places):
            if "refused" in places:
                raise BatchError("global_batch 3 is not a multiple of 2")
            return program, placed(*filter(None, places))

        facts = {name: NodeFacts("python3", "192.0.2.1", None) for name in agents}
        order = Order(folder, created, program, placement, hosts, facts, again)
        screen = Screen()
        state = Controller(order, nodes, screen, clock).run()
        assert replay(folder).exit_code == state.exit_code
        assert replay(folder).first_failure == state.first_failure
        assert replay(folder).ranks == state.ranks
        lines = [line["event"] for line in read_lines(folder.events)]
        assert lines.count("Ended") == 1
        assert lines[-1] == "Ended"
        return state, screen, folder

    yield run
    for nodes in opened:
        nodes.close(wait_s=0.2)


def finishing():
    return ScriptedAgent(ScriptedAgent.finish)


def failing(attempts=99, code=3):
    """Its first rank fails in the first attempts; then it finishes."""

    def play(agent, start):
        if start.attempt <= attempts:
            agent.exit(start.ranks[0]["rank"], code)
        else:
            agent.finish(start)

    return ScriptedAgent(play)


def fold(folder, *names):
    return [line["event"] for line in read_lines(folder.events) if line["event"] in names]


def test_a_run_that_finishes(launch):
    """Every agent is told who the run is, then its ranks, once; the run ends with 0 when all is idle."""
    a, b = finishing(), finishing()
    state, screen, _ = launch(a=[a], b=[b])
    assert (state.state, state.exit_code, state.attempt) == ("finished", 0, 1)
    assert [type(m).__name__ for m in a.stream.received][:3] == ["Configure", "Ask", "Start"]
    assert [order["rank"] for order in b.got(protocol.Start)[0].ranks] == [2, 3]
    assert b.got(protocol.Start)[0].ranks[0]["env"]["MASTER_PORT"] == "12345"
    assert a.configured.token != b.configured.token
    assert screen.notes == []


def test_restart_until_it_works(launch):
    """A failed attempt is stopped on all nodes and followed by the next, with a fresh port, until one finishes."""
    a, b = failing(attempts=1), ScriptedAgent(lambda agent, start: start.attempt > 1 and agent.finish(start))
    state, screen, folder = launch(a=[a], b=[b])
    assert (state.state, state.attempt) == ("finished", 2)
    assert len(b.got(protocol.Stop)) == 1
    assert [start.attempt for start in b.got(protocol.Start)] == [1, 2]
    assert len([ask for ask in a.got(protocol.Ask) if ask.question == "pick_port"]) == 2
    assert fold(folder, "AttemptBegan", "Restarting") == ["AttemptBegan", "Restarting", "AttemptBegan"]
    assert "restart 1 of 2" in screen.notes
    assert folder.attempts() == [1, 2]


def test_budget(launch):
    """When the restarts are used up the run has failed, and says whose fault it was and why it stops."""
    state, screen, _ = launch(policy={"max_restarts": 1}, a=[failing()], b=[ScriptedAgent()])
    assert (state.state, state.exit_code, state.attempt) == ("failed", 1, 2)
    assert (state.first_failure.rank, state.first_failure.exit_code, state.first_failure.log_tail) == (
        0,
        3,
        "last words of 0",
    )
    assert sorted(state.first_failure.followers) == [1, 2, 3]  # two nodes: which is heard first is open
    assert "no restart: 1 of 1 restarts are used" in screen.notes


def test_a_lost_node_is_opened_again(launch):
    """The link of one node breaks mid-run: the others are stopped, a fresh agent is made, and the run goes on."""
    second, b = finishing(), ScriptedAgent(lambda agent, start: start.attempt > 1 and agent.finish(start))
    first = ScriptedAgent(lambda agent, start: agent.stream.end("connection reset"))
    state, _, folder = launch(a=[first, second], b=[b])
    assert (state.state, state.attempt) == ("finished", 2)
    assert fold(folder, "NodeLost", "NodeBack") == ["NodeLost", "NodeBack"]
    assert second.configured.run_id == "run"


def test_a_node_that_stays_away(launch):
    """It cannot be opened again: the run has failed, the lost node is the first failure."""
    first = ScriptedAgent(lambda agent, start: agent.stream.end("connection reset"))
    state, screen, _ = launch(a=[first], b=[ScriptedAgent()])
    assert (state.state, state.first_failure.cause, state.first_failure.host) == ("failed", "node_lost", "a")
    assert any("connection refused" in note for note in screen.notes)


def vanishing():
    """Its link ends when its ranks start."""
    return ScriptedAgent(lambda agent, start: agent.stream.end("connection reset"))


def later():
    """Finishes in the second attempt."""
    return ScriptedAgent(lambda agent, start: start.attempt > 1 and agent.finish(start))


def test_a_spare_takes_the_place_of_a_lost_node(launch):
    """The spare was told who the run is and nothing else; then it gets the lost node's ranks, and the others theirs
    again, with the new node 0's address.
    """
    b, c = later(), finishing()
    state, screen, folder = launch(a=[vanishing()], b=[b], c=[c], spares=1)
    assert (state.state, state.attempt, state.hosts) == ("finished", 2, ("c", "b"))
    assert "c takes the place of a" in screen.notes
    assert fold(folder, "NodeLost", "ReopenFailed", "Placed", "AttemptBegan", "NodeBack") == [
        "AttemptBegan", "NodeLost", "ReopenFailed", "Placed", "AttemptBegan",
    ]  # fmt: skip
    (start,) = c.got(protocol.Start)
    assert [(order["rank"], order["env"]["GROUP_RANK"]) for order in start.ranks] == [(0, "0"), (1, "0")]
    assert {order["env"]["DISTPERF_JOB_TOKEN"] for order in start.ranks} == {c.configured.token}


def test_fewer_nodes_when_none_is_spare(launch):
    """The lost node stays away for lease and grace: the run goes on without it."""
    b = later()
    state, screen, _ = launch(policy={"min_nodes": 1}, a=[vanishing()], b=[b])
    assert (state.state, state.attempt, state.hosts) == ("finished", 2, ("b",))
    assert "going on without a" in screen.notes
    assert [order["env"]["WORLD_SIZE"] for order in b.got(protocol.Start)[1].ranks] == ["2", "2"]


def test_no_plan_for_the_nodes_that_are_left(launch):
    """What the recipe cannot be on them ends the run, with the reason."""
    state, screen, _ = launch(a=[vanishing()], b=[ScriptedAgent()], refused=[ScriptedAgent()], spares=1)
    assert (state.state, state.exit_code) == ("failed", 1)
    assert "global_batch 3 is not a multiple of 2" in screen.notes


def test_a_host_that_fails_twice_is_set_aside(launch):
    """The spare takes over although the host is there, and the host's agent leaves in order at the end."""
    a, b, c = (
        failing(),
        ScriptedAgent(lambda agent, start: start.attempt > 2 and agent.finish(start)),
        finishing(),
    )
    state, screen, _ = launch(a=[a], b=[b], c=[c], spares=1)
    assert (state.state, state.attempt, state.hosts) == ("finished", 3, ("c", "b"))
    assert "a is set aside: the first failure was there too often" in screen.notes


def test_a_lost_spare_costs_nothing(launch):
    """It is opened again while the run goes on."""
    starts, first = [], ScriptedAgent()

    class Fresh(ScriptedAgent):
        def _react(self, message):
            super()._react(message)
            if isinstance(message, protocol.Configure):
                a.finish(starts[0])

    a = ScriptedAgent(lambda agent, start: (starts.append(start), first.stream.end("connection reset")))
    state, _, folder = launch(a=[a], c=[first, Fresh()], spares=1)
    assert (state.state, state.attempt) == ("finished", 1)
    assert fold(folder, "NodeLost", "Placed") == ["NodeLost"]


def test_node_0_lost_while_a_port_is_asked_for(launch):
    """An attempt can fail before it has a port."""
    silent = ScriptedAgent()
    silent.mute = True
    b = ScriptedAgent(ScriptedAgent.finish)
    state, _, _ = launch(a=[silent, finishing()], b=[b])
    assert (state.state, state.attempt) == ("finished", 2)
    assert len(b.got(protocol.Start)) == 1


def test_silence(launch):
    """A node that is heard no more is told as unreachable, given up after lease and grace, and opened again."""

    def fall_silent(agent, start):
        agent.mute = True

    b = ScriptedAgent(lambda agent, start: start.attempt > 1 and agent.finish(start))
    state, screen, folder = launch(a=[ScriptedAgent(fall_silent), finishing()], b=[b])
    assert (state.state, state.attempt) == ("finished", 2)
    assert "a is unreachable: nothing heard for 2 s" in screen.notes
    assert [line["why"] for line in read_lines(folder.events) if line["event"] == "NodeLost"] == [
        "nothing heard for 7 s; its ranks have ended themselves by now"
    ]


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (signal.SIGINT, 130),
        (signal.SIGTERM, 143),
        (signal.SIGHUP, 143),
        (signal.SIGUSR1, 75),
        (signal.SIGUSR2, 75),
    ],
)
def test_signals_end_the_run(launch, number, code):
    """A signal while ranks run stops them in order and gives the run its code; handlers are put back after."""
    before = signal.getsignal(number)
    a = ScriptedAgent(lambda agent, start: os.kill(os.getpid(), number))
    state, _, _ = launch(a=[a])
    assert (state.state, state.exit_code) == ("stopped", code)
    assert a.got(protocol.Stop)[0].grace_s == 3.0
    assert signal.getsignal(number) == before


def test_a_signal_that_an_agent_tells_of_ends_the_run(launch):
    """SLURM's signals to steps only reach agents; the controller hears of them and ends the run in order, once."""

    def play(agent, start):
        for name in ("SIGUSR1", "SIGTERM"):
            agent.stream.say(protocol.Signalled(name))

    a = ScriptedAgent(play)
    state, _, _ = launch(a=[a], policy={"in_job": True})
    assert (state.state, state.exit_code) == ("stopped", 75)
    assert [stop.grace_s for stop in a.got(protocol.Stop)] == [3.0]


def test_metrics_progress_and_logs(launch):
    """Metrics become lines, progress is folded into the journal, log bytes land by offset and are shown."""

    def play(agent, start):
        for rank, data in ((0, b"hello\n"), (1, b"you\n")):
            agent.stream.say_bytes(protocol.encode_log(1, rank, 0, data))
        agent.stream.say_bytes(protocol.encode_log(9, 0, 0, b"of another attempt"))
        agent.report(0, "metrics", step=1, loss=2.5)
        agent.stream.say(protocol.Heartbeat(1, {"0": 1, "1": 1}, 0))
        agent.report(0, "phase", phase="train")
        agent.finish(start)

    state, screen, folder = launch(a=[ScriptedAgent(play)])
    assert state.exit_code == 0
    assert list(read_lines(folder.metrics)) == [{"step": 1, "loss": 2.5, "attempt": 1}]
    assert folder.log(1, 0).read_bytes() == b"hello\n"
    assert ("a", 1, b"you\n") in screen.logs
    assert [line["steps"] for line in read_lines(folder.events) if line["event"] == "Progressed"] == [
        {"0-1": 1}
    ]
    assert state.step == 1


def test_a_disk_that_refuses(launch, tmp_path):
    """The run folder going away is told as such, not as a traceback."""

    def play(agent, start):
        (tmp_path / "run" / "logs" / "attempt-1" / "rank-00000.log").unlink()
        agent.stream.say_bytes(protocol.encode_log(1, 0, 0, b"x"))

    with pytest.raises(RunFolderError, match="cannot write to"):
        launch(a=[ScriptedAgent(play)])


def test_figures_reach_the_folder(launch):
    """What agents tell of ranks and nodes, at the latest when the run ends."""

    def play(agent, start):
        agent.stream.say(protocol.Figures(1, {"0": {"steps": 1, "forward": 0.5}}, {"cpu": 0.25}))
        agent.finish(start)

    _, _, run = launch(a=[ScriptedAgent(play)])
    assert json.loads(run.figures.read_bytes())["nodes"] == {"a": {"cpu": 0.25}}
    assert json.loads(run.usage.read_text())["forward_s"] == 0.5


def test_a_stall(launch):
    """No step for too long: all nodes are asked for stacks before anything is ended, and the journal has it all."""

    def stand_still(agent, start):
        if start.attempt > 1:
            agent.finish(start)
        else:
            agent.stream.say(protocol.Heartbeat(1, {str(order["rank"]): 3 for order in start.ranks}, 0))

    a, b = ScriptedAgent(stand_still), ScriptedAgent(stand_still)
    state, _, folder = launch(policy={"stall_timeout_s": 5.0, "script": True}, a=[a], b=[b])
    assert (state.state, state.attempt) == ("finished", 2)
    assert fold(folder, "Stalled", "StacksTaken", "HeldUp", "Restarting") == [
        "Stalled", "StacksTaken", "StacksTaken", "HeldUp", "Restarting"]  # fmt: skip
    asked = [type(message) for message in b.stream.received]
    assert asked.index(protocol.TakeStacks) < asked.index(protocol.Stop)
    assert (state.first_failure.cause, state.first_failure.rank, state.first_failure.step) == ("stall", 0, 3)
