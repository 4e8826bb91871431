import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher import attempts, restart, supervise
from launcher.actions import (
    Finish,
    GiveUp,
    Note,
    PickPort,
    Place,
    Reopen,
    StartRanks,
    StopRanks,
    TakeStacks,
    Write,
)
from launcher.events import (
    AttemptBegan,
    Ended,
    Heard,
    HeldUp,
    Interrupted,
    LinkLost,
    NodeBack,
    NodeIdle,
    NodeLost,
    Noted,
    Placed,
    PortPicked,
    Progressed,
    RankExited,
    RankReported,
    RankStarted,
    ReopenFailed,
    Restarting,
    RunCreated,
    StacksTaken,
    Stalled,
    Stepped,
    Tick,
    Unplaceable,
    Wrote,
)
from launcher.state import Failure, Unsent

HOSTS = ("a", "b")
FAILURE = Failure("a", 0, "exit", 1, None, "exited with code 1", None, "")
POLICY = {"max_restarts": 2, "heartbeat_timeout_s": 10.0, "lease_s": 25.0, "grace_s": 30.0, "script": False}


def ranks_on(*hosts):
    """Two ranks a host."""
    return [
        {"rank": r, "local_rank": r % 2, "host": hosts[r // 2], "node_rank": r // 2, "coordinates": {}}
        for r in range(2 * len(hosts))
    ]


def created(spares=(), **policy):
    pool = [{"host": host, "slots": 2} for host in (*HOSTS, *spares)]
    controller = {"host": "c", "pid": 1, "created": 0.0}
    return RunCreated(
        0.0, "run", "run", 10, ranks_on(*HOSTS), {**POLICY, **policy}, controller, "0", pool
    )  # fmt: skip


class Run:
    """A run that is driven by hand: the state, all actions so far, and the journal a controller would have kept."""

    def __init__(self, **policy):
        first = created(**policy)
        self.journal = [first]
        self.actions = []
        self.events = []
        self.state = supervise.created(first)
        self._take(attempts.begin(self.state))

    def _take(self, step):
        self.state, actions = step
        self.actions += actions
        for action in actions:
            if isinstance(action, Write):
                self.journal.append(action.event)
            elif isinstance(action, Finish):
                self.journal.append(Ended(self.state.t, action.state, action.exit_code))
            elif isinstance(action, GiveUp):
                self.events.append(NodeLost(self.state.t, action.host, action.why))
            elif isinstance(action, Place):
                ranks = ranks_on(*filter(None, action.places))
                self.events.append(Placed(self.state.t, list(action.places), ranks))
        return actions

    def send(self, kind, *fields, dt=0.01, attempt=None):
        """An event now; kinds that have an attempt get the current one. Returns the actions."""
        names = [f.name for f in dataclasses.fields(kind)]
        if "attempt" in names:
            fields = (self.state.attempt if attempt is None else attempt, *fields)
        self.events = [kind(self.state.t + dt, *fields)]
        actions = ()
        for event in self.events:  # giving a host up adds to them
            if event.kept and not self.state.over:
                self.journal.append(event)
            actions += self._take(supervise.advance(self.state, event))
        return actions

    def hear(self, host, seconds):
        """This host alone is heard, once a second. Returns the actions."""
        return tuple(action for _ in range(seconds) for action in self.send(Heard, host, dt=1.0))

    def start(self):
        self.send(PortPicked, "127.0.0.1", 1234)
        for rank in self.state.ranks:
            self.send(RankStarted, rank.rank, 100 + rank.rank)
        return self

    def exit(self, rank, code=1, signal=None, **more):
        return self.send(RankExited, rank, code, signal, f"tail {rank}", None, **more)

    def done(self, rank):
        self.send(RankReported, rank, {"kind": "done"})
        return self.exit(rank, 0)

    def idle(self, *hosts):
        return [action for host in hosts or HOSTS for action in self.send(NodeIdle, host)]

    def replayed(self):
        state = supervise.created(self.journal[0])
        for event in self.journal[1:]:
            state, _ = supervise.observe(state, event)
        return state


def story(state):
    return state.state, state.attempt, state.first_failure, state.exit_code


# One test an edge of the lifecycle.


def test_begins_with_a_port():
    """The first attempt is written down and asks for a port; nothing is started before there is one."""
    run = Run()
    assert run.actions == [Write(AttemptBegan(0.0, 1)), PickPort()]
    assert run.state.state == "starting"


def test_port_starts_all_ranks():
    """With a port the attempt's ranks are started, once."""
    run = Run()
    assert run.send(PortPicked, "192.0.2.1", 99) == (StartRanks(1, "192.0.2.1", 99),)
    assert run.state.in_flight


def test_running_when_all_ranks_exist():
    """starting -> running with the last rank's process, not before."""
    run = Run()
    run.send(PortPicked, "x", 1)
    for rank in range(4):
        assert run.state.state == "starting"
        run.send(RankStarted, rank, rank)
    assert run.state.state == "running"


def test_finished_when_done_and_idle():
    """running -> finished needs every rank's "done", its exit with 0, and every node idle."""
    run = Run().start()
    for rank in range(4):
        run.done(rank)
    assert run.idle("a") == []
    assert run.idle("b") == [Finish("finished", 0)]


def test_early_exit_with_0_is_a_failure():
    """A rank that exits 0 without having said done has left its peers alone."""
    run = Run().start()
    assert run.exit(2, 0) == (StopRanks(1, 2.0),)
    assert run.state.failure.message == "exited with code 0 before the last step was done"


def test_a_script_may_exit_0_when_it_likes():
    """A user's script tells no done: 0 is enough."""
    run = Run(script=True).start()
    for rank in range(4):
        run.exit(rank, 0)
    run.idle()
    assert story(run.state)[0::3] == ("finished", 0)


@pytest.mark.parametrize("code", [1, 2, 139])
def test_failure_stops_the_others(code):
    """running -> stopping with the first rank that fails; the others get their grace."""
    run = Run().start()
    assert run.exit(1, code) == (StopRanks(1, 2.0),)
    assert run.state.state == "stopping"


def test_first_failure_by_receipt_followers_folded():
    """C04: the first that is heard of is the answer, whatever the others say later; they are its followers."""
    run = Run().start()
    run.exit(1, None, "SIGKILL")
    for rank in (3, 0, 2):
        run.exit(rank, None, "SIGABRT")
    failure = run.state.first_failure
    assert (failure.rank, failure.signal, failure.followers) == (1, "SIGKILL", (3, 0, 2))


ECHO = {
    "kind": "error",
    "type": "RuntimeError",
    "message": "[gloo] Connection closed by peer",
    "traceback": "...",
}


def test_an_echo_gives_way_to_what_it_echoes():
    """C04: a rank that felt another one go may be heard of first; the one that went is the answer all the same."""
    run = Run().start()
    run.send(RankReported, 2, ECHO)
    run.exit(2, 1)
    run.exit(1, None, "SIGKILL")
    run.exit(0, None, "SIGTERM")
    failure = run.state.first_failure
    assert (failure.rank, failure.signal, failure.followers) == (1, "SIGKILL", (2, 0))
    assert run.state.failed_hosts == (run.state.ranks[1].host,)


@pytest.mark.parametrize(
    ("later", "code", "name"), [(0.0, None, "SIGTERM"), (31.0, None, "SIGKILL"), (0.0, 1, None)]
)
def test_an_echo_stays_the_answer_to_what_we_did(later, code, name):
    """Ranks that end by our SIGTERM, by our SIGKILL after the grace, or without a word explain nothing."""
    run = Run().start()
    run.send(RankReported, 2, ECHO)
    run.exit(2, 1)
    run.exit(1, code, name, dt=later + 0.01)
    assert run.state.first_failure.rank == 2


def test_restart_only_when_all_is_idle():
    """stopping -> restarting when nothing of the attempt is left on any node; then the next one after the wait."""
    run = Run().start()
    run.exit(0)
    assert run.idle("a") == []
    write, begun, pick = run.idle("b")
    assert isinstance(write.event, Restarting)
    assert (begun, pick) == (Write(AttemptBegan(run.state.t, 2)), PickPort())
    assert (run.state.state, run.state.attempt, run.state.failure) == ("starting", 2, None)


def test_a_wait_before_a_restart_is_kept():
    """restarting -> starting when the wait is over, and not before."""
    run = Run(max_restarts=9).start()
    run.exit(0)
    run.idle()
    run.start().exit(0)
    run.idle()
    assert run.state.state == "restarting"
    assert run.send(Tick, dt=run.state.restart_at - run.state.t - 0.01) == ()
    assert run.send(Tick, dt=0.02) == (Write(AttemptBegan(run.state.t, 3)), PickPort())


def test_budget_used_up_is_failed():
    """The last attempt's failure ends the run with 1, its reason said."""
    run = Run(max_restarts=0).start()
    run.exit(0)
    note, finish = run.idle()
    assert note == Note("no restart: 0 of 0 restarts are used")
    assert finish == Finish("failed", 1)


def test_progress_makes_a_restart_free_of_wait():
    """An attempt that got further than any before is followed at once; the second that did not, after a wait."""
    run = Run(max_restarts=9).start()
    run.send(Progressed, {"0-3": 5})
    run.exit(0)
    assert run.idle()[-2:] == [Write(AttemptBegan(run.state.t, 2)), PickPort()]
    run.start().exit(0)
    assert run.idle()[-1] == PickPort()
    run.start().exit(0)
    run.idle()
    assert run.state.restart_at == pytest.approx(run.state.t + 1.0)


def test_late_words_change_nothing():
    """Events of an attempt that is over do not reach the next one's state."""
    run = Run().start()
    run.exit(0)
    run.idle()
    run.send(Tick, dt=5.0)
    run.start()
    before = run.state
    run.exit(1, 9, attempt=1)
    run.send(NodeIdle, "a", attempt=1)
    run.send(RankStarted, 0, 1, attempt=1)
    run.send(Progressed, {"0-3": 9}, attempt=1)
    run.send(RankReported, 0, {"kind": "error"}, attempt=1)
    assert dataclasses.replace(run.state, t=0) == dataclasses.replace(before, t=0)


def test_lost_node_fails_the_attempt_and_is_reopened():
    """running -> stopping; the host is opened anew at once, and the next attempt waits for it."""
    run = Run().start()
    assert run.send(NodeLost, "b", "cut") == (StopRanks(1, 2.0), Reopen("b"))
    assert [r.state for r in run.state.ranks] == ["running", "running", "stopped", "stopped"]
    run.idle("a")
    assert run.send(Tick, dt=9.0) == ()
    assert PickPort() in run.send(NodeBack, "b")


def test_lost_node_that_stays_away_ends_the_run():
    """restarting -> failed when the host is out of reach for lease + grace; it remains the first failure."""
    run = Run().start()
    run.send(NodeLost, "b", "cut")
    run.idle("a")
    assert run.send(ReopenFailed, "b", "no route") == ()
    assert run.send(Heard, "a", dt=54.0) == ()
    note, finish = run.send(Heard, "a", dt=1.1)
    assert "b could not be reached again: no route" in note.text
    assert finish == Finish("failed", 1)
    assert run.state.first_failure.cause == "node_lost"


def lose(run, *hosts):
    """The hosts go away for good, the others become idle, and all there is to wait for is over."""
    for host in hosts:
        run.send(NodeLost, host, "cut")
    for host in run.state.hosts:
        if host not in run.state.lost:
            run.idle(host)
    for host in hosts:
        run.send(ReopenFailed, host, "no route")


def test_a_spare_takes_the_place_of_a_lost_host():
    """As soon as one try to reach it has failed: planned anew, said, written down, begun; its ranks are there."""
    run = Run(spares="c").start()
    lose(run, "b")
    assert (run.state.state, run.state.attempt, run.state.hosts) == ("starting", 2, ("a", "c"))
    assert run.actions[-4:] == [
        Note("c takes the place of b"), Place(("a", "c")), Write(AttemptBegan(run.state.t, 2)), PickPort(),
    ]  # fmt: skip
    run.start()
    assert [(rank.host, rank.state) for rank in run.state.ranks[2:]] == [("c", "running")] * 2
    assert run.replayed().ranks == run.state.ranks


def test_a_spare_that_is_lost_is_no_failure():
    """The run goes on, the spare is made anew, and takes no place while it is away."""
    run = Run(spares="cd").start()
    assert run.send(NodeLost, "c", "cut") == (Reopen("c"),)
    assert run.state.state == "running"
    lose(run, "b")
    assert run.state.places == ("a", "d")


def test_going_on_with_fewer_nodes():
    """Without a spare the lost host is waited for lease + grace; then the run goes on without it if it may."""
    run = Run(min_nodes=1).start()
    lose(run, "b")
    assert run.state.state == "restarting"
    run.send(Heard, "a", dt=56.0)
    assert (run.state.state, run.state.hosts, len(run.state.ranks)) == ("starting", ("a",), 2)
    assert Note("going on without b") in run.actions
    run.start()
    before = run.state
    run.exit(3, attempt=2)  # a rank that is not there any more
    assert run.state.ranks == before.ranks
    run.send(NodeBack, "b")
    run.exit(0)
    run.idle("a")
    run.send(Tick, dt=2.0)
    assert run.state.hosts == ("a", "b")
    assert Note("b takes an empty place") in run.actions


def test_too_few_nodes():
    """Below min_nodes the run has failed, and says what is missing."""
    run = Run(min_nodes=2, spares="c").start()
    lose(run, "c", "b")
    run.send(Heard, "a", dt=56.0)
    assert run.state.state == "failed"
    assert run.actions[-2].text == (
        "b could not be reached again: no route; launch.min_nodes is 2, and none of 1 spare fits"
    )


def test_no_plan_for_the_hosts_that_are_left():
    """What resolving anew refuses ends the run with its reason."""
    run = Run(spares="c")
    run.state = dataclasses.replace(run.start().state, asked=("a", "c"))
    lose(run, "b")
    note, finish = run.send(Unplaceable, "global_batch 3 is not a multiple")
    assert (note, finish) == (Note("global_batch 3 is not a multiple"), Finish("failed", 1))


def test_a_host_that_fails_again_is_set_aside():
    """The first failure of two attempts in a row on one host: a spare is taken, and why is said."""
    run = Run(spares="c", max_restarts=9)
    for _ in range(2):
        run.start().exit(2)
        run.idle()
        run.send(Tick, dt=2.0)
    assert (run.state.state, run.state.hosts) == ("starting", ("a", "c"))
    assert Note("b is set aside: the first failure was there too often") in run.actions


def test_back_while_the_others_are_stopped():
    """A fresh agent before all is idle: the attempt's end does not wait for it, and the next one has it."""
    run = Run().start()
    run.send(NodeLost, "b", "cut")
    run.send(NodeBack, "b")
    assert PickPort() in run.idle("a")


def test_node_lost_while_a_restart_waits_is_reopened():
    """A second loss during the wait does not leave the run waiting for ever."""
    run = Run(max_restarts=9).start()
    run.exit(0)
    run.idle()
    run.start().exit(0)
    run.idle()
    assert run.send(NodeLost, "a", "cut") == (Reopen("a"),)
    run.send(Tick, dt=9.0)
    assert run.state.state == "restarting"
    assert PickPort() in run.send(NodeBack, "a")


def test_node_lost_while_the_port_is_picked_counts():
    """An attempt that fails before its ranks are started is an attempt."""
    run = Run(max_restarts=1)
    run.send(NodeLost, "a", "cut")
    assert (run.state.state, run.state.attempt) == ("restarting", 1)
    run.send(NodeBack, "a", dt=9.0)
    assert run.state.attempt == 2
    assert Finish("failed", 1) in run.send(NodeLost, "b", "cut")


def test_lost_node_that_was_done_does_no_harm():
    """A node whose ranks are all done and whose logs are complete may go."""
    run = Run().start()
    for rank in range(4):
        run.done(rank)
    run.idle("b")
    assert run.send(NodeLost, "b", "cut") == (Reopen("b"),)
    assert run.idle("a") == [Finish("finished", 0)]


def test_silence_is_told_then_given_up():
    """Two limits: unreachable after heartbeat_timeout_s (a note), lost after lease + grace."""
    run = Run().start()
    run.send(Heard, "a")
    run.send(Heard, "b")
    assert run.hear("a", 9) == ()
    assert run.hear("a", 2) == (Note("b is unreachable: nothing heard for 10 s"),)
    assert run.state.unreachable == {"b"}
    assert run.hear("a", 43) == ()
    run.hear("a", 2)
    assert set(run.state.lost) == {"b"}
    assert run.state.first_failure.cause == "node_lost"


def test_a_node_that_never_says_anything_is_noticed():
    """Silence counts from the attempt's beginning, not from a first word."""
    run = Run().start()
    run.hear("a", 11)
    assert run.state.unreachable == {"b"}


def test_a_pause_of_the_controllers_is_no_silence_of_the_nodes():
    """It slept for a minute; what they said meanwhile waits to be taken in, one after the other. Silence counts on."""
    run = Run().start()
    run.hear("a", 8)
    assert run.send(Heard, "a", dt=60.0) == ()
    assert run.state.unreachable == run.state.lost.keys() == set()
    assert run.hear("a", 2) == (Note("b is unreachable: nothing heard for 10 s"),)


def test_an_unreachable_node_that_speaks_again():
    """It is simply there again, and the next silence is told again."""
    run = Run().start()
    run.hear("a", 11)
    run.send(Heard, "b")
    assert run.state.unreachable == frozenset()
    run.hear("a", 9)
    assert Note("b is unreachable: nothing heard for 10 s") in run.hear("a", 2)


def test_records_of_a_rank():
    """Memory, phase, checkpoint and error records land in the state; unknown ones are nothing."""
    run = Run().start()
    run.send(RankReported, 1, {"kind": "memory", "parameters_bytes": 8, "device": "cpu"})
    run.send(RankReported, 1, {"kind": "phase", "phase": "train"})
    run.send(RankReported, 0, {"kind": "event", "event": "checkpoint", "path": "/c/step-5"})
    run.send(RankReported, 1, {"kind": "new", "x": 1})
    rank = run.state.ranks[1]
    assert (rank.memory, rank.phase, run.state.checkpoint) == ({"parameters_bytes": 8}, "train", "/c/step-5")
    run.send(RankReported, 1, {"kind": "error", "type": "ValueError", "message": "no", "traceback": "T"})
    run.exit(1)
    assert (run.state.first_failure.message, run.state.first_failure.traceback) == ("ValueError: no", "T")


def test_exits_after_an_interrupt_are_no_failures():
    """Ranks that SIGTERM ends are stopped, not failed; one that still finishes is done."""
    run = Run().start()
    run.send(Interrupted, "SIGINT")
    run.exit(0, None, "SIGTERM")
    run.done(1)
    assert [r.state for r in run.state.ranks[:2]] == ["stopped", "done"]
    assert run.state.first_failure is None


def test_second_interrupt_is_at_once():
    """C08: the first one gives grace and waits for logs, any further one neither."""
    run = Run().start()
    sent = [action for _ in range(3) for action in run.send(Interrupted, "SIGINT")]
    assert sent == [StopRanks(1, 30.0), StopRanks(1, 0.0, hurry=True), StopRanks(1, 0.0, hurry=True)]


def test_second_interrupt_does_not_wait_for_a_node_out_of_reach():
    """Its ranks end by the lease, which is said; the first one still waits for the link to come back."""
    run = Run().start()
    run.send(LinkLost, "b", "reset")
    run.send(Interrupted, "SIGINT")
    assert run.idle("a") == []
    _, note, finish = run.send(Interrupted, "SIGINT")
    assert "b is out of reach and was not told: its ranks end themselves within 55 s" in note.text
    assert finish == Finish("stopped", 130)


def test_logs_that_were_not_waited_for_are_told():
    """Where they are, by host, in the state that a journal gives too."""
    run = Run().start()
    run.send(Interrupted, "SIGINT")
    run.send(Interrupted, "SIGINT")
    run.send(NodeIdle, "a", {"0": 5, "1": 7}, "/tmp/x")
    run.idle("b")
    assert run.state.unsent == {"a": Unsent("/tmp/x", 12)}


def test_step_of_a_run():
    """The step that all reporting ranks have finished."""
    run = Run().start()
    run.send(Progressed, {"0-2": 5, "3": 4})
    assert run.state.step == 4


def tick(run, seconds):
    """Time passes as it does: ticks, and all nodes are heard. The actions that came of it."""
    return [
        action
        for _ in range(round(seconds / 0.5))
        for actions in (*(run.send(Heard, host, dt=0) for host in HOSTS), run.send(Tick, dt=0.5))
        for action in actions
    ]


def stand_still(run):
    """Two steps are known, then nothing comes for longer than the limit."""
    for step in (1, 2):
        run.send(Stepped, dict.fromkeys(range(4), step))
        run.send(Tick)
        run.send(Progressed, {"0-3": step})
    return tick(run, 33)


def look(*frames, **more):
    return {"state": "S", "stack": "Current thread 0x1 (most recent call first):\n" + "".join(
        f'  File "{file}", line {line} in {name}\n' for file, line, name in frames), **more}  # fmt: skip


def test_a_stall_takes_stacks_then_stops():
    """running -> stalled -> stopping: nothing is ended before every node has told what its ranks do."""
    run = Run().start()
    write, take = stand_still(run)
    assert (take, run.state.state) == (TakeStacks(1), "stalled")
    assert isinstance(write.event, Stalled)
    waits, own = (
        look(("/v/site-packages/torch/distributed/c.py", 9, "wait"), ("/t.py", 5, "step")),
        look(("/t.py", 7, "load")),
    )
    assert run.send(StacksTaken, "a", {"0": waits, "1": waits}) == ()
    held_up, stop = run.send(StacksTaken, "b", {"2": own, "3": waits})
    assert (held_up.event, stop) == (HeldUp(run.state.t, 1, 2), StopRanks(1, 2.0))
    failure = run.state.first_failure
    assert (failure.cause, failure.rank, failure.host, failure.step) == ("stall", 2, "b", 2)
    assert failure.message.startswith("has not finished step 3, in /t.py:7 load (no progress for 32 s")
    assert failure.message.endswith("; ranks 0-1,3: in /t.py:5 step")
    assert story(run.replayed()) == story(run.state)


def test_a_node_that_does_not_tell_is_not_waited_for_long():
    """The stacks of a node whose agent hangs too are missed, and the run goes on to its end or restart."""
    run = Run().start()
    stand_still(run)
    run.send(StacksTaken, "a", {"0": look(), "1": look()})
    assert StopRanks(1, 2.0) in tick(run, 6)
    run.exit(1, None, "SIGTERM")
    run.idle()
    assert (run.state.state, run.state.attempt) == ("starting", 2)
    assert run.state.pace.gaps == ()


def test_a_rank_that_falls_while_stacks_are_taken():
    """Its own failure is the answer: the stall was its shadow."""
    run = Run().start()
    stand_still(run)
    assert run.exit(3, 9) == (StopRanks(1, 2.0),)
    assert run.state.first_failure.cause == "exit"


def test_no_stall_while_steps_come():
    """Steps at any pace below the limit are no stall, however long it goes on."""
    run = Run().start()
    for step in range(1, 30):
        run.send(Stepped, dict.fromkeys(range(4), step))
        assert tick(run, 25) == []
    assert run.state.state == "running"


def test_a_node_that_is_not_heard_does_not_stall():
    """While a node is silent nothing is known of its ranks: that is the other clock's business."""
    run = Run(heartbeat_timeout_s=999.0, lease_s=9999.0).start()
    for step in (1, 2):
        run.send(Stepped, dict.fromkeys(range(4), step))
        run.send(Tick)
    for _ in range(200):
        run.send(Heard, "a", dt=0.5)
        run.send(Tick, dt=0.5)
    assert run.state.state == "running"


def test_a_controller_that_slept_sees_no_stall():
    """Time in which nobody looked (a suspended laptop, SIGSTOP) is nobody's stall."""
    run = Run(lease_s=9999.0).start()
    for step in (1, 2):
        run.send(Stepped, dict.fromkeys(range(4), step))
        run.send(Tick)
    run.send(Tick, dt=3600.0)
    tick(run, 20)
    assert run.state.state == "running"


def test_a_script_that_reports_nothing():
    """auto: not watched. A number counts from its last output, and from the start without any."""
    assert tick(Run(script=True).start(), 2000) == []
    run = Run(script=True, stall_timeout_s=4.0).start()
    assert tick(run, 5) == []
    run.send(Wrote)
    assert tick(run, 5) == []
    assert TakeStacks(1) in tick(run, 2)


def test_a_rank_that_does_not_end_with_the_others_is_told_of_once():
    """Of a script, which may go on alone for hours: it is not ended."""
    run = Run(script=True).start()
    run.exit(0, 0), run.exit(2, 0)
    assert tick(run, 50) == []
    run.send(Wrote)
    assert tick(run, 50) == []
    (note,) = tick(run, 2000)
    assert note.text.startswith("ranks 1,3 still run, without a word, 60 s and more after ranks 0,2 ended")
    assert run.state.state == "running"


MOMENTS = {
    "picking a port": lambda run: None,
    "starting": lambda run: (run.send(PortPicked, "x", 1), run.send(RankStarted, 0, 1)),
    "running": lambda run: run.start(),
    "taking stacks": lambda run: stand_still(run.start()),
    "stopping": lambda run: run.start().exit(1),
    "a node lost": lambda run: run.start().send(NodeLost, "b", "cut"),
    "restarting": lambda run: (run.start().exit(1), run.idle()),
    "picking a second port": lambda run: (run.start().exit(1), run.idle(), run.send(Tick, dt=9.0)),
    "reopening": lambda run: (run.start().send(NodeLost, "b", "cut"), run.idle("a")),
}


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize(("signal", "code"), [("SIGINT", 130), ("SIGTERM", 143), ("SIGUSR1", 75)])
def test_an_interrupt_at_any_moment_ends_the_run(moment, signal, code):
    """Whatever the run is about, it ends with the signal's code once nothing of it is left."""
    run = Run()
    MOMENTS[moment](run)
    in_flight = run.state.in_flight
    run.send(Interrupted, signal)
    assert run.state.over != in_flight
    for host in HOSTS:
        run.idle(host)
    assert (run.state.state, run.state.exit_code) == ("stopped", code)
    assert story(run.replayed()) == story(run.state)


def test_in_a_job_only_the_user_is_in_a_hurry():
    """A cluster tells batch shell and steps alike: the first signal counts, and later ones change nothing. A Ctrl-C
    after it ends the grace.
    """
    run = Run(in_job=True).start()
    run.send(Interrupted, "SIGUSR1")
    assert not run.send(Interrupted, "SIGTERM")
    assert not run.send(Interrupted, "SIGTERM")
    assert list(run.send(Interrupted, "SIGINT")) == [StopRanks(1, 0.0, True)]
    run.idle()
    assert (run.state.state, run.state.exit_code) == ("stopped", 75)


def test_a_requeued_job_goes_on_counting_attempts_but_not_restarts():
    """Its first attempt has the next number; the budget of restarts is whole again."""
    state = supervise.created(dataclasses.replace(created(max_restarts=1), attempts_before=3))
    state, _ = attempts.begin(state)
    assert state.attempt == 4
    assert restart.decide(dataclasses.replace(state, failure=FAILURE)).wait_s == 0.0
    assert restart.decide(dataclasses.replace(state, attempt=5, failure=FAILURE)).wait_s is None


# Properties.

EDGES = {
    "starting": {"starting", "running", "stopping", "restarting", "finished", "failed", "stopped"},
    "stalled": {"stalled", "stopping", "restarting", "starting", "finished", "failed", "stopped"},
    "running": {"running", "stalled", "stopping", "restarting", "finished", "failed", "stopped"},
    # starting: where there is nothing to wait for
    "stopping": {"stopping", "restarting", "starting", "failed", "stopped"},
    "restarting": {"restarting", "starting", "failed", "stopped"},
    "finished": {"finished"},
    "failed": {"failed"},
    "stopped": {"stopped"},
}
hosts, ranks = st.sampled_from(HOSTS), st.integers(0, 3)
signals = st.none() | st.sampled_from(["SIGKILL", "SIGTERM"])
records = st.sampled_from(
    [
        {"kind": "done"},
        {"kind": "error", "type": "DataError", "message": ""},
        {"kind": "phase"},
        {"kind": "x"},
    ]
)
looks = st.fixed_dictionaries(
    {"state": st.sampled_from("STD")}, optional={"stack": st.just("junk"), "note": st.just("x")}
)
occurrences = st.one_of(
    st.just((PortPicked, "x", 1)),
    st.tuples(st.just(RankStarted), ranks, st.just(7)),
    st.tuples(st.just(RankReported), ranks, records),
    st.tuples(st.just(RankExited), ranks, st.none() | st.integers(0, 2), signals, st.just(""), st.none()),
    st.tuples(st.just(Progressed), st.fixed_dictionaries({"0-3": st.integers(0, 9)})),
    st.tuples(st.just(Stepped), st.dictionaries(ranks, st.integers(1, 9))),
    st.just((Wrote,)),
    st.tuples(st.just(StacksTaken), hosts, st.dictionaries(ranks.map(str), looks)),
    st.tuples(st.just(Heard), hosts),
    st.tuples(st.just(NodeIdle), hosts),
    st.tuples(st.just(NodeIdle), hosts),
    st.tuples(st.just(NodeLost), hosts, st.just("cut")),
    st.tuples(st.just(NodeBack), hosts),
    st.tuples(st.just(NodeBack), hosts),
    st.tuples(st.just(ReopenFailed), hosts, st.just("no route")),
    st.tuples(st.just(Interrupted), st.sampled_from(["SIGINT", "SIGTERM"])),
    st.just((Tick,)),
    st.just((Noted, "note")),
)
sequences = st.lists(
    st.tuples(
        occurrences, st.sampled_from([0.0, 0.1, 1.0, 5.0, 60.0]), st.sampled_from([None] * 5 + [0, 1, 2])
    ),
    max_size=60,
)


@settings(max_examples=300)
@given(sequences, st.booleans(), st.integers(0, 3), st.none() | st.integers(1, 9))
def test_any_sequence_of_events(sequence, script, max_restarts, stall_timeout_s):
    """No illegal step, no restart too many, at most one end, a journal that replays to the same story, and after an
    interrupt an end as soon as every host is idle or lost.
    """
    run = Run(script=script, max_restarts=max_restarts, stall_timeout_s=stall_timeout_s)
    for (kind, *fields), dt, attempt in sequence:
        before = run.state
        run.send(kind, *fields, dt=dt, attempt=attempt)
        assert run.state.state in EDGES[before.state]
        assert story(run.replayed()) == story(run.state)
    if not run.state.over:
        run.send(Interrupted, "SIGINT")
        for host in HOSTS:
            run.idle(host)
        assert run.state.exit_code == (143 if run.state.interrupted == "SIGTERM" else 130)
    began = [
        action
        for action in run.actions
        if isinstance(action, Write) and isinstance(action.event, AttemptBegan)
    ]
    assert [action.event.attempt for action in began] == list(range(1, len(began) + 1))
    assert len(began) <= max_restarts + 1
    assert sum(isinstance(action, Finish) for action in run.actions) == 1
    assert story(run.replayed()) == story(run.state)


class World:
    """Nodes as they behave: they do what actions ask for, or fail, by chance."""

    def __init__(self, random, max_restarts, spares, min_nodes):
        self.random, self.all = random, (*HOSTS, *spares)
        self.run = Run(
            max_restarts=max_restarts, spares=spares, min_nodes=min_nodes, stall_timeout_s=3.0, script=True
        )
        self.todo = list(self.run.actions)

    def tell(self, kind, *fields):
        self.todo += self.run.send(kind, *fields, dt=self.random.choice([0.0, 0.5, 2.0]))

    def carry_out(self, action):
        state, lucky = self.run.state, self.random.random() < 0.8
        if isinstance(action, PickPort):
            self.tell(*((PortPicked, "x", 1) if lucky else (NodeLost, "a", "cut")))
        elif isinstance(action, Reopen):
            self.tell(*((NodeBack, action.host) if lucky else (ReopenFailed, action.host, "no route")))
        elif isinstance(action, StartRanks):
            assert not set(state.hosts) & state.lost.keys()
            for rank in state.ranks:
                self.tell(RankStarted, rank.rank, 1)
        elif isinstance(action, TakeStacks) and lucky:
            for host in HOSTS:
                self.tell(
                    StacksTaken, host, {str(r.rank): {"state": "S"} for r in state.ranks if r.host == host}
                )
        elif isinstance(action, StopRanks) and state.in_flight:
            for rank in state.ranks:
                if not rank.over:
                    self.tell(RankExited, rank.rank, None, "SIGTERM", "", None)
            for host in self.all:
                if host not in state.lost:
                    self.tell(NodeIdle, host)

    def live(self):
        rank = self.random.choice(self.run.state.ranks)
        if self.random.random() < 0.1:
            self.tell(NodeLost, self.random.choice(self.all), "cut")
        elif self.run.state.lost and self.random.random() < 0.05:
            self.tell(NodeBack, self.random.choice(list(self.run.state.lost)))
        elif not rank.over and rank.state == "running" and self.random.random() < 0.3:
            self.tell(RankExited, rank.rank, self.random.choice([0, 1]), None, "", None)
        else:
            self.tell(Tick)
        for host in self.all:
            if host not in self.run.state.lost:
                self.tell(Heard, host)


@settings(max_examples=150)
@given(
    st.randoms(use_true_random=False), st.integers(0, 4), st.sampled_from(["", "c", "cd"]),
    st.sampled_from([None, 1, 2]),
)  # fmt: skip
def test_every_run_ends(random, max_restarts, spares, min_nodes):
    """With nodes that do what they are asked or are lost, and ranks that fail some day, no run waits for ever, and
    none has more attempts than it may or ranks on a host that is lost when they start.
    """
    world = World(random, max_restarts, spares, min_nodes)
    for _ in range(400):
        while world.todo:
            world.carry_out(world.todo.pop(0))
        state = world.run.state
        assert state.attempt <= max_restarts + 1
        if state.over:
            assert story(world.run.replayed()) == story(state)
            return
        world.live()
    raise AssertionError(f"still {world.run.state}")
