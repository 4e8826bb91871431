"""The open agents of a run: connect to all hosts at once, ask them all, tell them all."""

from __future__ import annotations

import itertools
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from launcher import protocol
from launcher.errors import ConnectFailed, PreflightError, TransportError
from launcher.hostfile import Host
from launcher.nodeset import fold
from launcher.plan import label
from launcher.transport.base import Transport
from launcher.transport.channel import Channel, Closed, Talk

Carry = Callable[[str, Callable[[str, dict[str, Any]], protocol.Answer]], str]

CARRY_LIMIT_S = 1800.0  # 100 MiB over a slow link
GREET_LIMIT_S = 30.0  # from a session to the agent's hello: a slow profile, a cold python on a network disk
CONNECT_THREADS = 64
PING_S = 5.0  # well within any lease
LOG_PIECES = (
    64  # of up to 256 KiB that wait in the inbox: who reads a link faster than they are written down waits
)


@dataclass(frozen=True)
class Unanswered:
    """What stands for a host's answer when there is none."""

    why: str
    lost: bool  # the host is gone or silent; else it is there and could not do what was asked


class Nodes:
    """Channels by host label. Whatever arrives goes to `inbox` as (host label, message).

    carry: called with every fresh agent before anything else, with a host label and a way to ask; what it returns, a
    folder of the host, is in `folders`.
    """

    def __init__(self, transport: Transport, carry: Carry | None = None) -> None:
        self.folders: dict[str, str] = {}
        self._carry = carry
        self.inbox: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        self.facts: dict[str, dict[str, Any]] = {}
        self._transport = transport
        self._channels: dict[str, Channel] = {}
        self._talks: dict[str, Talk] = {}  # of hosts whose link is gone and may come back
        self._lock = threading.Lock()
        self._ids = itertools.count(1)
        self._log_room = threading.BoundedSemaphore(LOG_PIECES)
        self._kept: deque[tuple[str, Any]] = deque()  # arrived while `ask` waited for something else

    @property
    def link_may_return(self) -> bool:
        """The end of a channel need not be the end of its agent."""
        return self._transport.link_may_return

    def open_all(self, hosts: Iterable[Host]) -> None:
        """Start an agent on every host, many at once. Raises one TransportError that names all that failed."""
        failures = self.open_each(hosts)
        if failures:
            self.close()
            raise together(list(failures.values()))

    def open_each(self, hosts: Iterable[Host]) -> dict[str, TransportError]:
        """Start an agent on every host that lets us, many at once; why not, for each of the others."""
        hosts = list(hosts)
        errors = map(self._try_open, hosts) if len(hosts) == 1 else self._at_once(hosts)
        return {label(host): error for host, error in zip(hosts, errors, strict=True) if error is not None}

    def open(self, host: Host) -> None:
        """Start a fresh agent on one host. Raises TransportError."""
        channel = self._greeted(host)
        with self._limited(channel):
            channel.start()

    def open_and_ask(
        self, host: Host, question: str, args: dict[str, Any], limit_s: float
    ) -> protocol.Answer:
        """Start a fresh agent on one host; its answer to a first question. Raises TransportError."""
        channel = self._greeted(host)
        with self._limited(channel, limit_s):
            answer = channel.ask(protocol.Ask(0, question, args))
            channel.start()
        return answer

    def _greeted(self, host: Host) -> Channel:
        self._talks.pop(label(host), None)
        channel = Channel(label(host), self._transport.connect(host), self._deliver)
        with self._limited(channel):
            self.facts[channel.host] = channel.greet().facts
        if self._carry is not None:
            self._bring(channel, self._carry)
        return channel

    def _bring(self, channel: Channel, carry: Carry) -> None:
        """Let the code go along."""

        def ask(question: str, args: dict[str, Any]) -> protocol.Answer:
            return channel.ask(protocol.Ask(0, question, args))

        with self._limited(channel, CARRY_LIMIT_S):
            try:
                self.folders[channel.host] = carry(channel.host, ask)
            except TransportError:
                channel.abort()
                raise

    def reopen(self, host: Host, run_id: str, token: str) -> bool:
        """Find the agent again that the link to a host was lost to; False when it is dead. Raises TransportError."""
        talk = self._talks.get(label(host))
        if talk is None:
            raise ConnectFailed(label(host), "it was given up meanwhile")
        channel = Channel(label(host), self._transport.connect(host), self._deliver, talk)
        with self._limited(channel):
            channel.greet()
            received = channel.resume(talk.relay(run_id, token))
        if received is None:
            self.drop(channel.host)
            return False
        with self._lock:  # what is told from here on goes out behind what was told meanwhile
            del self._talks[channel.host]
            channel.start(talk.sent.missing(received))
        return True

    @contextmanager
    def _limited(self, channel: Channel, limit_s: float = GREET_LIMIT_S) -> Iterator[None]:
        """Have the channel among ours while it begins, within a time limit; not any more when that fails."""
        self._channels[channel.host] = channel  # before anything can arrive: its end must not be missed
        timer = threading.Timer(limit_s, channel.abort)
        timer.daemon = True
        timer.start()
        try:
            yield
        except OSError as error:
            del self._channels[channel.host]
            raise ConnectFailed(channel.host, str(error)) from None
        except TransportError:
            del self._channels[channel.host]
            raise
        finally:
            timer.cancel()

    def next(self, limit_s: float) -> tuple[str, Any]:
        """What has arrived, oldest first: (host label, message). Raises queue.Empty after limit_s."""
        return self._kept.popleft() if self._kept else self._take(limit_s)

    def _take(self, limit_s: float) -> tuple[str, Any]:
        host, message = self.inbox.get(timeout=limit_s)
        if isinstance(message, protocol.LogBytes):
            self._log_room.release()
        return host, message

    def tell(self, host: str, message: protocol.Message) -> None:
        """Send one host a message; one that is gone is told nothing, one whose link is gone later."""
        with self._lock:
            if host in self._talks:
                if protocol.counted(message):
                    self._talks[host].sent.add(protocol.encode(message))
            elif host in self._channels:
                self._channels[host].send(message)

    def ping(self) -> None:
        """Renew every agent's lease."""
        for host, channel in list(self._channels.items()):
            if host not in self._talks:
                channel.send(protocol.Ping(channel.talk.received))

    def lose_link(self, host: str) -> bool:
        """The channel has ended. True when its agent may still be there: keep what is said until it is back."""
        channel = self._channels.pop(host, None)
        if channel is None or not self._transport.link_may_return:
            return False
        channel.close()
        self._talks[host] = channel.talk
        return True

    def tell_all(self, message: protocol.Message) -> None:
        """Send every host a message."""
        for host in {**self._channels, **self._talks}:
            self.tell(host, message)

    def put_question(self, host: str, question: str, args: dict[str, Any]) -> int:
        """Ask one host, and do not wait: the number of the Answer that `next` will give."""
        number = next(self._ids)
        self.tell(host, protocol.Ask(number, question, args))
        return number

    def ask(
        self, questions: Mapping[str, tuple[str, dict[str, Any]]], limit_s: float = 70.0
    ) -> dict[str, Any]:
        """Ask each host its question; every answer, or an error that names all hosts without one.

        Raises ConnectFailed for a host that is lost, PreflightError for one that cannot answer.
        """
        answers = self.gather(questions, limit_s)
        missing = {host: answer for host, answer in answers.items() if isinstance(answer, Unanswered)}
        lost = [ConnectFailed(host, answer.why) for host, answer in missing.items() if answer.lost]
        if lost:
            raise together(list(lost))
        if missing:
            raise PreflightError("\n".join(f"{host}: {answer.why}" for host, answer in missing.items()))
        return answers

    def gather(
        self, questions: Mapping[str, tuple[str, dict[str, Any]]], limit_s: float = 70.0
    ) -> dict[str, Any]:
        """Ask each host its question and wait for all: an answer, or Unanswered, a host. What else arrives is kept
        for `next`.
        """
        gone = Unanswered("its agent is gone", lost=True)
        answers: dict[str, Any] = {host: gone for host in questions if host not in self._channels}
        waiting = {}
        for host, (question, args) in questions.items():
            if host not in answers:
                waiting[self.put_question(host, question, args)] = host
        deadline, silent_s = time.monotonic() + limit_s, 0.0
        while waiting:
            wait_s = max(0.01, min(PING_S, limit_s, deadline - time.monotonic()))
            try:
                host, message = self._take(wait_s)
            except queue.Empty:
                silent_s += wait_s
                if silent_s < limit_s and time.monotonic() < deadline:
                    self.ping()  # those that wait for a slow one must not think us gone
                    continue
                for host in waiting.values():
                    why = f"no answer to {questions[host][0]!r} within {limit_s:g} s"
                    answers[host] = Unanswered(why, lost=True)
                break
            if isinstance(message, protocol.Answer) and message.id in waiting:
                del waiting[message.id]
                answers[host] = (
                    message.value if message.error is None else Unanswered(message.error, lost=False)
                )
            elif isinstance(message, Closed) and host in waiting.values():
                waiting = {number: other for number, other in waiting.items() if other != host}
                answers[host] = Unanswered(message.why, lost=True)
                self.drop(host)
            else:
                self._kept.append((host, message))
        return answers

    def drop(self, host: str) -> None:
        """Forget a host whose agent has ended."""
        self._talks.pop(host, None)
        channel = self._channels.pop(host, None)
        if channel is not None:
            channel.close()

    def close(self, wait_s: float = 2.0) -> None:
        """Say goodbye to all and wait a moment for them to leave."""
        self.tell_all(protocol.Bye())
        deadline = time.monotonic() + wait_s
        while self._channels and (left := deadline - time.monotonic()) > 0:
            try:
                host, message = self.next(left)
            except queue.Empty:
                break
            if isinstance(message, Closed):
                self.drop(host)
        for host in list(self._channels):
            self.drop(host)
        self._transport.close()

    def _try_open(self, host: Host) -> TransportError | None:
        try:
            self.open(host)
        except TransportError as error:
            return error
        return None

    def _at_once(self, hosts: list[Host]) -> list[TransportError | None]:
        """Those that are ready meanwhile must not think us gone."""
        from concurrent.futures import (
            ThreadPoolExecutor,
            wait,
        )  # an import that a run on one host does without

        with ThreadPoolExecutor(min(CONNECT_THREADS, len(hosts)) or 1) as pool:
            opening = [pool.submit(self._try_open, host) for host in hosts]
            while wait(opening, PING_S).not_done:
                self.ping()
        return [each.result() for each in opening]

    def _deliver(self, channel: Channel, message: Any) -> None:
        if isinstance(message, Closed) and self._channels.get(channel.host) is not channel:
            return  # of a channel that has been replaced
        if isinstance(message, protocol.LogBytes):
            self._log_room.acquire()
        self.inbox.put((channel.host, message))


def together(failures: list[TransportError]) -> TransportError:
    """One error for several hosts, grouped by reason, hosts folded."""
    if len(failures) == 1:
        return failures[0]
    groups: dict[str, list[str]] = {}
    for failure in failures:
        groups.setdefault(failure.reason.replace(failure.host, "HOST"), []).append(failure.host)
    lines = [f"  {fold(hosts)}: {reason.replace('HOST', 'it')}" for reason, hosts in groups.items()]
    kinds = {type(failure) for failure in failures}
    cls: Callable[[str, str], TransportError] = kinds.pop() if len(kinds) == 1 else TransportError
    return cls(f"{len(failures)} hosts", "could not be prepared:\n" + "\n".join(lines))
