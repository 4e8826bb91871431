"""The controller: one queue in, actions out. Owns the clock, the journal and the agents; decides nothing.

Every decision is `supervise.advance`. What happens on nodes arrives as messages, becomes an event, is written down
if it is of a kept kind, and the actions that `advance` returns are carried out.
"""

from __future__ import annotations

import dataclasses
import os
import queue
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from distperf.errors import RecipeError
from launcher import actions, attempts, control, events, protocol, signals, supervise, tracefiles
from launcher.errors import PlacementError, RunFolderError
from launcher.figurefiles import FigureFiles
from launcher.hostfile import Host
from launcher.journal import Journal, Metrics
from launcher.logfiles import LogFiles
from launcher.nodes import Nodes
from launcher.plan import (
    Attempt,
    NodeFacts,
    Placement,
    Program,
    label,
    node_token,
    orders,
    planned_ranks,
    warm,
)
from launcher.reach import Reach, Relinked, Reopened
from launcher.rundir import RunDir
from launcher.screen import Screen
from launcher.setup import NO_SETUP, Setup
from launcher.state import RunState, Step
from launcher.steps import Steps
from launcher.transport.channel import Closed

TICK_S = 0.25
PROGRESS_KEPT_S = 5.0
HEARTBEAT_S = 1.0


@dataclass(frozen=True)
class Order:
    """All that a controller needs to know about the run that it starts.

    again(places): plan anew for other holders of the places ("": nobody), and write that down. Raises RecipeError,
    PlacementError. preempted(): asked at a SIGTERM; True where it makes room for another job.
    """

    run: RunDir
    created: events.RunCreated
    program: Program
    placement: Placement
    hosts: tuple[Host, ...]  # spares too
    facts: dict[str, NodeFacts]
    again: Callable[[tuple[str, ...]], tuple[Program, Placement]]
    setup: Setup = NO_SETUP
    preempted: Callable[[], bool] = lambda: False


class Controller:
    """Runs one run from its first attempt to its end."""

    def __init__(
        self, order: Order, nodes: Nodes, screen: Screen, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._order, self._nodes, self._screen = order, nodes, screen
        self._clock, self._zero = clock, clock()
        self._journal = Journal(order.run.events)
        self._metrics = Metrics(order.run)
        self._figures = FigureFiles(order.run)
        self._traced = 0
        self._logs: LogFiles | None = None
        self._steps = Steps()
        self._wrote = False  # a rank has written something since the last tick
        self._ticked_t = self._pinged_t = 0.0
        self._asked: tuple[int, str] | None = (
            None  # for a port: the question's number, and where the port shall be
        )
        self._events: deque[events.Event] = deque()
        self._signals: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.state = supervise.created(order.created)
        self._program, self._placement = order.program, order.placement
        self._hosts = {label(host): host for host in order.hosts}
        self._reach = Reach(nodes, lambda: self.state, order.setup, order.program.workdir)

    def run(self, begun: Callable[[], None] = lambda: None) -> RunState:
        """Start the ranks, see them through, and return the final state. Raises RunFolderError on a full disk.

        `begun` is called when the run stands in its journal and no rank has been started yet.
        """
        try:
            with signals.caught(self._signals):
                self._journal.write(self._order.created)
                begun()
                self._configure(self._hosts)
                self._carry_out(attempts.begin(self.state))
                while not self.state.over:
                    self._turn()
                self._figures.keep(self.state, last=True)
        except OSError as error:
            raise RunFolderError(f"cannot write to {self._order.run.path}: {error.strerror}") from None
        finally:
            self._journal.close()
            self._metrics.close()
        return self.state

    # One turn of the loop.

    def _turn(self) -> None:
        try:
            host, message = self._nodes.next(TICK_S)
        except queue.Empty:
            pass
        else:
            self._take(host, message)
        while not self._signals.empty():
            self._happened(self._interrupted(self._signals.get()))
        if self._now() - self._ticked_t >= TICK_S:
            self._tick()

    def _interrupted(self, name: str) -> events.Interrupted:
        warned = name == "SIGUSR2" or (
            name == "SIGTERM" and not self.state.interrupted and self._order.preempted()
        )
        return events.Interrupted(self._now(), "SIGUSR1" if warned else name)  # as before a time limit

    def _tick(self) -> None:
        self._ticked_t = self._now()
        self._keep_progress(PROGRESS_KEPT_S)
        if steps := self._steps.heard():  # once for all nodes: there may be a thousand
            self._happened(events.Stepped(self._now(), self.state.attempt, steps))
        if self._wrote:
            self._wrote = False
            self._happened(events.Wrote(self._now(), self.state.attempt))
        self._happened(events.Tick(self._now()))
        self._figures.keep(self.state)
        if self._now() - self._pinged_t >= HEARTBEAT_S:
            self._pinged_t = self._now()
            self._nodes.ping()
            self._journal.touch()

    def _take(self, host: str, message: Any) -> None:
        if isinstance(message, control.Request):
            self._take_request(message)
            return
        if isinstance(message, Closed):
            self._take_end(host, message)
            return
        if isinstance(message, Relinked):
            self._take_relinked(host, message)
            return
        if isinstance(message, Reopened):
            self._take_reopened(host, message)
            return
        if isinstance(message, protocol.LogBytes):
            self._take_log(host, message)
            return
        self._happened(events.Heard(self._now(), host))
        if isinstance(message, protocol.Figures):
            self._figures.take(host, message)
        if isinstance(message, protocol.Trace):
            self._keep_trace(message)
        if isinstance(message, protocol.Remark):
            self._note(actions.Note(f"{host}: {message.text}"))
        for event in self._events_of(host, message):
            self._happened(event)

    def _take_end(self, host: str, closed: Closed) -> None:
        if self._nodes.lose_link(host):
            self._happened(events.LinkLost(self._now(), host, closed.why))
            return
        self._nodes.drop(host)
        self._happened(events.NodeLost(self._now(), host, f"its agent is gone: {closed.why}"))

    def _take_relinked(self, host: str, relinked: Relinked) -> None:
        if host in self.state.lost:  # given up meanwhile: Reach is making a fresh agent
            return
        if relinked.found:
            self._happened(events.LinkBack(self._now(), host))
            self._screen.note(f"the link to {host} is back")
        else:
            self._happened(events.NodeLost(self._now(), host, "its agent is gone"))

    def _take_request(self, request: control.Request) -> None:
        """A "stop" is one Ctrl-C, a "kill" is two, "stacks" have the agents look at their ranks, a "ping" only asks.

        A "save" is asked of one rank: the others hear of it in the next step.
        """
        if (why := control.refusal(request.do, self.state, request.args)) is not None:
            request.answer({"refused": why})
            return
        attempt = self.state.attempt
        if request.do == "stacks":
            self._nodes.tell_all(protocol.TakeStacks(attempt))
        elif request.do == "profile":
            request.answer({"id": self._ask_for_traces(request.args)})
            return
        elif request.do == "save":
            self._nodes.tell(self.state.ranks[0].host, protocol.AskRanks(attempt, [0], "save"))
        for _ in range({"stop": 1, "kill": 2}.get(request.do, 0)):
            self._happened(events.Interrupted(self._now(), "SIGINT"))
        request.answer({"pid": os.getpid(), "state": self.state.state})

    def _ask_for_traces(self, args: dict[str, Any]) -> str:
        """Tell the chosen ranks; they begin together once all have heard of it. Returns the traces' id."""
        ranks = args["ranks"]
        self._traced += 1
        number = f"{self.state.attempt}t{self._traced}"
        by_host: dict[str, list[int]] = {}
        for rank in ranks:
            by_host.setdefault(self.state.ranks[rank].host, []).append(rank)
        for host, there in by_host.items():
            request = f"profile {number} {args['steps']} {len(ranks)}"
            self._nodes.tell(host, protocol.AskRanks(self.state.attempt, there, request))
        return number

    def _keep_trace(self, piece: protocol.Trace) -> None:
        try:
            tracefiles.keep(self._order.run, piece)
        except OSError as error:  # a run does not end for want of a trace
            self._note(actions.Note(f"the trace of rank {piece.rank} cannot be kept: {error.strerror}"))

    def _take_reopened(self, host: str, reopened: Reopened) -> None:
        if reopened.error is not None:
            self._screen.note(f"{host} cannot be reached: {reopened.error}; trying on")
            self._happened(events.ReopenFailed(self._now(), host, reopened.error))
            return
        facts = self._order.facts
        facts[host] = dataclasses.replace(facts[host], setup=reopened.changes)
        self._configure([host])
        self._happened(events.NodeBack(self._now(), host))
        self._screen.note(f"{host} has a fresh agent")

    def _take_log(self, host: str, piece: protocol.LogBytes) -> None:
        if self._logs is not None and piece.attempt == self.state.attempt:
            self._logs.write(piece.rank, piece.offset, piece.data)
            self._wrote = True
            self._screen.log(host, piece.rank, piece.data)

    def _events_of(self, host: str, message: Any) -> Iterator[events.Event]:
        t = self._now()
        if isinstance(message, protocol.Started):
            yield events.RankStarted(t, *message)
        elif isinstance(message, protocol.Exited):
            self._keep_progress(0.0)
            yield events.RankExited(t, *message)
        elif isinstance(message, protocol.Idle):
            self._keep_progress(0.0)  # the last steps came with the heartbeat before this
            yield events.NodeIdle(t, message.attempt, host, message.unsent, message.folder)
        elif isinstance(message, protocol.Heartbeat) and message.attempt == self.state.attempt:
            self._steps.take({int(rank): step for rank, step in message.steps.items()})
        elif isinstance(message, protocol.Answer) and self._asked and message.id == self._asked[0]:
            yield self._port_of(host, message, self._asked[1])
        elif isinstance(message, protocol.Signalled):
            yield self._interrupted(message.signal)
        elif isinstance(message, protocol.StacksTaken):
            yield events.StacksTaken(t, message.attempt, host, message.looks)
        elif isinstance(message, protocol.Record) and message.attempt == self.state.attempt:
            if message.record["kind"] == "metrics":
                self._take_metrics(message)
            else:
                yield events.RankReported(t, message.attempt, message.rank, message.record)

    def _take_metrics(self, message: protocol.Record) -> None:
        line = {k: v for k, v in message.record.items() if k != "kind"}
        line.setdefault("attempt", message.attempt)
        self._metrics.write(line)
        self._screen.metrics(line)
        if isinstance(line.get("step"), int):
            self._steps.take_metrics(message.rank, line["step"])

    def _keep_progress(self, after_s: float) -> None:
        """Write down how far the ranks are, now and then: the journal of a long run must stay small."""
        if steps := self._steps.unkept(self._now(), after_s):
            self._happened(events.Progressed(self._now(), self.state.attempt, steps))

    # Events and actions.

    def _happened(self, event: events.Event) -> None:
        """Take in an event, then what its actions make happen: one after the other, as the journal tells them."""
        self._events.append(event)
        if len(self._events) > 1:
            return  # called by an action: the loop below is at it
        while self._events and not self.state.over:
            if self._events[0].kept:
                self._journal.write(self._events[0])
            self._carry_out(supervise.advance(self.state, self._events[0]))
            self._events.popleft()
        self._screen.state(self.state)

    def _carry_out(self, step: Step) -> None:
        self.state, todo = step
        for action in todo:
            _DOERS[type(action)](self, action)

    def _pick_port(self, action: actions.PickPort) -> None:
        """Ask for one. Nobody waits for the answer: a host that gives none falls silent, or is lost, as any other."""
        host = label(self._placement.nodes[0].host)
        address = self._order.facts[host].address
        self._asked = self._nodes.put_question(host, "pick_port", {"address": address}), address

    def _port_of(self, host: str, answer: protocol.Answer, address: str) -> events.Event:
        if answer.error is None:
            return events.PortPicked(self._now(), self.state.attempt, address, answer.value)
        self._nodes.drop(host)
        return events.NodeLost(self._now(), host, answer.error)

    def _start_ranks(self, action: actions.StartRanks) -> None:
        self._logs = LogFiles(
            self._order.run, action.attempt, self._placement.world_size, self._program.log_limit_bytes
        )
        self._steps, self._wrote = Steps(), False
        attempt = Attempt(action.attempt, action.address, action.port, self.state.policy.max_restarts)
        for node in self._placement.nodes:
            facts = self._order.facts[label(node.host)]
            ranks = orders(self._program, self._placement, node, attempt, facts)
            warm_start = warm(self._program, node, attempt.max_restarts)
            self._nodes.tell(label(node.host), protocol.Start(attempt.number, ranks, warm_start))

    def _stop_ranks(self, action: actions.StopRanks) -> None:
        self._nodes.tell_all(protocol.Stop(action.attempt, action.grace_s, action.hurry))

    def _take_stacks(self, action: actions.TakeStacks) -> None:
        self._keep_progress(0.0)
        self._nodes.tell_all(protocol.TakeStacks(action.attempt))

    def _relink(self, action: actions.Relink) -> None:
        self._screen.note(f"the link to {action.host} is gone; trying again")
        run_id, token = self._program.run_id, node_token(self._program, action.host)
        self._reach.relink(self._hosts[action.host], run_id, token)

    def _reopen(self, action: actions.Reopen) -> None:
        self._reach.reopen(self._hosts[action.host])

    def _place(self, action: actions.Place) -> None:
        try:
            self._program, self._placement = self._order.again(action.places)
        except (RecipeError, PlacementError) as error:
            self._happened(events.Unplaceable(self._now(), str(error)))
            return
        ranks = planned_ranks(self._placement)
        self._happened(events.Placed(self._now(), list(action.places), ranks))

    def _note(self, action: actions.Note) -> None:
        self._journal.write(events.Noted(self._now(), action.text))
        self._screen.note(action.text)

    def _give_up(self, action: actions.GiveUp) -> None:
        if action.host not in self.state.lost:  # giving up another one may have told of it already
            self._nodes.drop(action.host)
            self._happened(events.NodeLost(self._now(), action.host, action.why))

    def _write(self, action: actions.Write) -> None:
        self._journal.write(action.event)
        if isinstance(action.event, events.Restarting):
            self._screen.note(action.event.reason)

    def _finish(self, action: actions.Finish) -> None:
        self._journal.write(events.Ended(self._now(), action.state, action.exit_code))

    # Clock, set-up.

    def _now(self) -> float:
        return round(self._clock() - self._zero, 4)

    def _configure(self, hosts: Iterable[str]) -> None:
        policy, program = self.state.policy, self._program
        for host in hosts:
            message = protocol.Configure(
                protocol.VERSION, program.run_id, node_token(program, host), policy.lease_s, policy.grace_s,
                HEARTBEAT_S, self._nodes.link_may_return,
            )  # fmt: skip
            self._nodes.tell(host, message)


_DOERS: dict[type, Callable[[Controller, Any], None]] = {
    actions.PickPort: Controller._pick_port,
    actions.StartRanks: Controller._start_ranks,
    actions.StopRanks: Controller._stop_ranks,
    actions.TakeStacks: Controller._take_stacks,
    actions.Relink: Controller._relink,
    actions.Reopen: Controller._reopen,
    actions.Place: Controller._place,
    actions.Note: Controller._note,
    actions.GiveUp: Controller._give_up,
    actions.Write: Controller._write,
    actions.Finish: Controller._finish,
}
