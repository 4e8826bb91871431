"""The agent's event loop: one thread, one selector. Carries out what the controller says, tells what happens."""

import os
import selectors
import signal
import socket
import time
from typing import Any, Dict, List, Optional, Tuple

from launcher import protocol
from launcher.agent import link, processes, questions, stock
from launcher.agent.figures import Figures
from launcher.agent.outbox import Outbox
from launcher.agent.ranks import Rank, Ranks, why_not_started
from launcher.agent.setup import Setup
from launcher.agent.spool import Spool
from launcher.agent.stacks import Looks
from launcher.agent.tier import Tier
from launcher.agent.traces import pieces
from launcher.agent.warm import WarmStart

LOG_LOOK_S = 0.025  # how often files are looked at for new bytes while ranks run
HURRY_BYTES = 1 << 16  # of logs, that even a second Ctrl-C waits for
KILL_AGAIN_S = 0.1  # how often what survives SIGKILL (a fork in between) is looked for


class Agent:
    """Serves one controller over two descriptors until it says Bye, goes silent for lease_s, or hangs up."""

    def __init__(self, in_fd: int, out_fd: int, guardian_fd: int) -> None:
        self._in_fd = in_fd
        self._out_fd = out_fd
        self._received = 0  # counted messages of the controller, over all links
        self._listener: Optional[socket.socket] = None
        self._guardian_fd = guardian_fd
        self._reader = protocol.FrameReader()
        self._outbox = Outbox(out_fd, self._next_log_frame)
        self._selector = selectors.DefaultSelector()
        self._selector.register(in_fd, selectors.EVENT_READ, self._read_controller)
        self._wakeup()
        self._orders = protocol.Configure(protocol.VERSION, "", "", 25.0, 30.0, 1.0, False)
        self._spool: Optional[Spool] = None
        self._tier: Optional[Tier] = None
        self._ranks = Ranks(0, "")
        self._pending: List[Dict[str, Any]] = []  # orders that have not been carried out
        self._warm = WarmStart(self._selector, self._need_spool, lambda text: self.say(protocol.Remark(text)))
        self._steps: Dict[str, int] = {}
        self._figures = Figures(self._selector)
        self._heard = self._beat = time.monotonic()
        self._kill_at: Optional[float] = None
        self._hurry = False  # where much of the logs has not been sent, it stays here
        self._setup: Optional[Tuple[int, Setup]] = None  # shell lines that run before any rank, and who asked
        self._looks: Optional[Looks] = None  # stacks that are being taken
        self._idle_told = True
        self._leaving = False

    def say(self, message: protocol.Message) -> None:
        """Queue a message to the controller."""
        self._outbox.put(message)

    def tell_of(self, *numbers: signal.Signals) -> None:
        """Hand these signals on to the controller, from here on."""
        for number in numbers:
            signal.signal(number, lambda n, _frame: self.say(protocol.Signalled(signal.Signals(n).name)))

    def serve(self) -> None:
        """Run until there is nothing left to do here."""
        while not self._over():
            self._write_controller()
            for key, _ in self._selector.select(self._wait_s()):
                key.data(key.fd)
            self._start_pending()
            self._reap()
            self._keep_time(time.monotonic())
        self._farewell()

    def _write_controller(self) -> None:
        linked = not self._outbox.detached
        all_written = self._outbox.flush()
        if self._outbox.detached:
            if linked:
                self._link_gone()
            return
        if all_written and self._out_fd in self._selector.get_map():
            self._selector.unregister(self._out_fd)
        elif not all_written and self._out_fd not in self._selector.get_map():
            self._selector.register(self._out_fd, selectors.EVENT_WRITE, lambda fd: None)

    # What comes in.

    def _wakeup(self) -> None:
        read_end, write_end = os.pipe()
        for fd in (read_end, write_end):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        self._selector.register(read_end, selectors.EVENT_READ, lambda fd: os.read(fd, 4096))

    def _read_controller(self, fd: int) -> None:
        try:
            data = os.read(fd, 1 << 20)
        except OSError:
            data = b""
        if not data:
            self._link_gone()
            return
        self._heard = time.monotonic()
        for message in self._reader.feed(data):
            self._received += protocol.counted(message)
            self._obey(message)

    def _obey(self, message: Any) -> None:
        if isinstance(message, protocol.Configure):
            self._configure(message)
        elif isinstance(message, protocol.Ask):
            self._answer(message)
        elif isinstance(message, protocol.Start):
            self._start(message)
        elif isinstance(message, protocol.Stop):
            self._hurry = self._hurry or message.hurry
            self._stop(message.grace_s)
        elif isinstance(message, protocol.TakeStacks):
            self._looks = self._ranks.look(time.monotonic())
        elif isinstance(message, protocol.AskRanks):
            deaf = self._ranks.ask(message.ranks, message.request)
            if deaf:
                self.say(protocol.Remark("no request can be made of ranks %s" % ", ".join(map(str, deaf))))
        elif isinstance(message, protocol.Ping):
            self._outbox.kept.acknowledge(message.received)
        elif isinstance(message, protocol.Attach):
            self._attach(message)
        elif isinstance(message, protocol.Relay):
            self._relay(message)
        elif isinstance(message, protocol.Bye):
            self._leaving = True
            if self._ranks.running():
                self._stop(self._orders.grace_s)

    def _configure(self, orders: protocol.Configure) -> None:
        self._orders = orders
        os.write(self._guardian_fd, orders.token.encode() + b"\n")
        # Of an earlier agent of this run on this node that the link or a signal took away.
        processes.send(processes.with_token(orders.token), signal.SIGKILL)
        if orders.outlives_link:
            self._spool = Spool(orders.run_id)
            self._listener = link.listen(self._spool.folder)
            self._selector.register(self._listener, selectors.EVENT_READ, self._adopt)

    def _answer(self, ask: protocol.Ask) -> None:
        try:
            if ask.question == "setup":  # answered when it has ended
                os.write(self._guardian_fd, ask.args["token"].encode() + b"\n")
                self._setup = ask.id, Setup(self._selector, **ask.args)
                return
            self.say(protocol.Answer(ask.id, questions.answer(ask.question, ask.args), None))
        except (OSError, ValueError, KeyError, TypeError) as error:
            self.say(protocol.Answer(ask.id, None, "%s: %s" % (ask.question, error)))
        self._heard = time.monotonic()  # the time that an answer takes is no silence of the controller's

    def _start(self, message: protocol.Start) -> None:
        self._ranks.forget()
        self._ranks = Ranks(message.attempt, self._orders.token)
        self._steps = {}
        self._figures.begin()
        self._kill_at, self._idle_told, self._looks, self._hurry = None, False, None, False
        self._pending = message.ranks
        self._warm.begin(message)

    def _start_pending(self) -> None:
        """Start the ranks that were ordered, unless they wait for the nursery's imports."""
        if self._warm.must_wait():
            return
        orders, self._pending = self._pending, []
        for order in orders:
            try:
                tier = self._need_tier(order.get("memory_dir"))
                rank = self._ranks.start(order, self._need_spool(), self._warm.nursery, tier)
            except OSError as error:
                why = why_not_started(order, error)
                self.say(protocol.Exited(self._ranks.attempt, order["rank"], None, None, "", why))
                continue
            self._selector.register(rank.report_fd, selectors.EVENT_READ, self._reporter(order["rank"], rank))
            self.say(protocol.Started(self._ranks.attempt, order["rank"], rank.pid))
        self._warm.drop_if_bad()

    def _need_spool(self) -> Spool:
        """The run's spool folder. Raises OSError when the node's disk refuses."""
        if self._spool is None:
            self._spool = Spool(self._orders.run_id)
        return self._spool

    def _need_tier(self, root: Optional[str]) -> Optional[Tier]:
        """The run's folder in memory, if it has one. Raises OSError when there is no room, or no such place."""
        if self._tier is None and root is not None:
            self._tier = Tier(root, self._orders.run_id)
            os.write(self._guardian_fd, os.fsencode(self._tier.folder) + b"\n")
        return self._tier

    def _reporter(self, number: int, rank: Rank) -> Any:
        def read(fd: int) -> None:
            for record in rank.records():
                if record["kind"] == "progress":
                    if isinstance(record.get("step"), int):
                        self._steps[str(number)] = record["step"]
                        self._figures.times.add(number, record.get("parts"))
                    continue
                if record["kind"] == "trace":
                    self._hand_on(number, record)
                    continue
                rank.told_error = rank.told_error or record["kind"] == "error"
                self.say(protocol.Record(self._ranks.attempt, number, record))
            if rank.silent and fd in self._selector.get_map():  # a closed pipe is readable for ever
                self._selector.unregister(fd)

        return read

    def _hand_on(self, number: int, record: Dict[str, Any]) -> None:
        """A trace that a rank has written into our folder."""
        try:
            for piece in pieces(self._need_spool().folder, record):
                self.say(protocol.Trace(self._ranks.attempt, number, *piece))
        except OSError as error:
            self.say(protocol.Remark("the trace of rank %d cannot be read: %s" % (number, error)))

    # What happens to ranks.

    def _reap(self) -> None:
        if self._setup is not None:
            number, setup = self._setup
            self._heard = time.monotonic()  # a controller waits for it, however long it takes
            if setup.over(self._heard):
                self._setup = None
                self.say(protocol.Answer(number, setup.answer(), None))
            return
        for number, code, name in self._ranks.reap():
            rank = self._ranks.all[number]
            self._reporter(number, rank)(rank.report_fd)  # what it said before it ended comes first
            if rank.report_fd in self._selector.get_map():
                self._selector.unregister(rank.report_fd)
            error = rank.log.error()
            if error is not None and not rank.told_error:
                self.say(protocol.Record(self._ranks.attempt, number, error))
            tail, oom = rank.log.tail(), self._ranks.why_killed(number, name)
            self.say(protocol.Exited(self._ranks.attempt, number, code, name, tail, None, oom))

    def _stop(self, grace_s: float) -> None:
        self._pending = []
        if not grace_s:
            self._signal(signal.SIGKILL)
        elif self._kill_at is None:
            self._signal(signal.SIGTERM)
        deadline = time.monotonic() + grace_s
        self._kill_at = deadline if self._kill_at is None else min(self._kill_at, deadline)

    def _signal(self, number: int) -> None:
        self._ranks.signal(number, self._warm.spare())

    def _keep_time(self, now: float) -> None:
        if now - self._heard > self._orders.lease_s and not self._leaving:
            self._controller_gone()
        if now - self._beat >= self._orders.heartbeat_s:
            self._beat = now
            self._heartbeat()
            if self._figures.due(now) and not self._idle_told:
                self._tell_figures(now)
        self._warm.keep_time(now)
        trouble = self._ranks.trim_logs()
        if trouble is not None:
            self.say(protocol.Remark(trouble))
        if self._looks is not None and self._looks.over(now):
            self.say(protocol.StacksTaken(self._ranks.attempt, self._looks.finish()))
            self._looks = None
        if self._idle_told or self._pending or self._ranks.running():
            if self._kill_at is not None and now >= self._kill_at and self._ranks.running():
                self._signal(signal.SIGKILL)
                self._kill_at = now + KILL_AGAIN_S
            return
        self._end_the_rest(now)

    def _end_the_rest(self, now: float) -> None:
        """All ranks have ended; their own children follow, and the last log bytes."""
        left = self._ranks.left(self._warm.spare())
        if left:
            if self._kill_at is None:
                processes.send(left, signal.SIGTERM)
                self._kill_at = now + self._orders.grace_s
            elif now >= self._kill_at:
                processes.send(left, signal.SIGKILL)
                self._kill_at = now + KILL_AGAIN_S
            return
        if self._outbox.flush():
            self._heartbeat()
            self._tell_figures(now)
            unsent, folder = self._ranks.unsent(), self._spool.folder if self._spool else ""
            self.say(protocol.Idle(self._ranks.attempt, unsent, folder if unsent else ""))
            self._idle_told = True

    def _heartbeat(self) -> None:
        steps, self._steps = self._steps, {}
        self.say(protocol.Heartbeat(self._ranks.attempt, steps, self._received))

    def _tell_figures(self, now: float) -> None:
        self.say(protocol.Figures(self._ranks.attempt, *self._figures.take(now)))

    def _next_log_frame(self) -> Optional[bytes]:
        if self._hurry and sum(self._ranks.unsent().values()) > HURRY_BYTES:
            return None
        for number, rank in list(self._ranks.all.items()):
            chunk = rank.log.next_chunk()
            if chunk is not None:
                self._ranks.all[number] = self._ranks.all.pop(
                    number
                )  # the next look begins with another rank
                return protocol.encode_log(self._ranks.attempt, number, *chunk)
        return None

    # The link, lost and found.

    def _link_gone(self) -> None:
        """The stream has ended. With nothing to wait for, so has the run here."""
        if not self._orders.outlives_link or self._leaving:
            self._controller_gone()
        else:
            self._drop_link()

    def _drop_link(self) -> None:
        self._outbox.detach()
        for fd in {self._in_fd, self._out_fd}:
            if fd in self._selector.get_map():
                self._selector.unregister(fd)
            os.close(fd)
        self._in_fd = self._out_fd = -1

    def _adopt(self, _fd: int) -> None:
        """A relay has come: its connection is the link now. Nothing is said before its Attach."""
        assert self._listener is not None
        connection, _ = self._listener.accept()
        if self._in_fd >= 0:
            self._drop_link()  # sshd may hold on to a session whose client is long gone
        self._out_fd = os.dup(connection.fileno())
        self._in_fd = connection.detach()
        self._reader = protocol.FrameReader()
        self._selector.register(self._in_fd, selectors.EVENT_READ, self._read_controller)

    def _attach(self, message: protocol.Attach) -> None:
        if message.attempt == self._ranks.attempt:
            for number, rank in self._ranks.all.items():
                rank.log.rewind(message.logs.get(str(number), 0))
        self._outbox.attach(self._out_fd, protocol.Attached(self._received), message.received)

    def _relay(self, message: protocol.Relay) -> None:
        """Be the bridge to the agent that serves this run here; or say what it left, when it is dead."""
        peer = link.find(message.run_id)
        frames = [] if peer is not None else list(link.remains(message))
        for frame in [*frames, protocol.encode(protocol.Relayed(peer is not None))]:
            self._outbox.put_frame(frame)
        os.set_blocking(self._out_fd, True)
        self._outbox.flush()
        if peer is not None:
            link.carry(self._in_fd, self._out_fd, peer)
        self._leaving = True

    # The end.

    def _controller_gone(self) -> None:
        """Nobody hears us any more: end the ranks, in order if they let us, and leave."""
        if self._in_fd >= 0:
            self._drop_link()
        self._outbox.broken = True
        if not self._leaving:
            self._leaving = True
            self._stop(self._orders.grace_s)

    def _over(self) -> bool:
        return self._leaving and self._idle_told

    def _wait_s(self) -> float:
        until_beat = max(0.0, self._beat + self._orders.heartbeat_s - time.monotonic())
        return until_beat if self._idle_told else min(until_beat, LOG_LOOK_S)

    def _farewell(self) -> None:
        self._figures.close()
        self._ranks.forget(self._hurry)
        self._warm.close()
        if self._setup is not None:
            self._setup[1].close()
        stock.clear()
        if self._tier is not None:
            self._tier.remove()
        if self._spool is not None:
            self._spool.remove(self._hurry)
        os.write(self._guardian_fd, b"bye\n")
        deadline = time.monotonic() + 1.0
        while not self._outbox.flush() and time.monotonic() < deadline:
            time.sleep(0.01)
