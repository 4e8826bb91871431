r"""Messages between controller and agent. Standard library only, Python 3.8 syntax: this file is shipped to nodes.

The stream from an agent begins with whatever the login shell and its profile print; it counts from the marker line
`\0distperf <nonce>\\n` on, whose nonce the controller chose. From there, and from the agent's first stage on in the
other direction, it is a sequence of frames:

    frame   := length (4 bytes, big endian, of all that follows) kind (1 byte) payload
    kind M  := a message: JSON array [name, field, field, ...], a field per name in the class below, in order
    kind L  := log bytes: attempt (4 bytes) rank (4 bytes) offset in the rank's log (8 bytes) bytes

Text that is not UTF-8 (an environment value, an argument) travels as Python's surrogate escapes, so every byte
arrives as given.
"""

import json
import struct
from collections import deque
from typing import Any, Deque, Dict, Iterator, List, NamedTuple, Optional, Type, Union

VERSION = 5  # raised with every change that an older agent or controller would misread
MAX_FRAME_BYTES = 64 << 20
MAX_NOISE_BYTES = 64 << 10  # of shell output before the marker kept for error messages

_HEAD = struct.Struct(">IB")
_LOG = struct.Struct(">IIQ")


# Controller to agent.


class Configure(NamedTuple):
    """First message: who the run is and how long the agent may go on without hearing from the controller.

    outlives_link: the end of the stream is a link that may come back within the lease, not the controller's end.
    """

    version: int
    run_id: str
    token: str
    lease_s: float
    grace_s: float
    heartbeat_s: float
    outlives_link: bool = False


class Ask(NamedTuple):
    """A question that changes nothing on the node but what its name says; answered by `Answer` with the same id."""

    id: int
    question: str  # one of launcher.agent.questions
    args: Dict[str, Any]


class Start(NamedTuple):
    """Start these ranks. Each is a dict: rank, local_rank, argv, env, cwd, and memory_dir: where the agent makes a
    folder for checkpoints in memory, if the run has some.

    warm: None, or how they may come from a process that has done their imports (launcher.agent.nursery): modules
    (name -> a pattern that a script's text must have; none at all without the first), wait (False: start these ranks
    directly, and have the process ready for a restart).
    """

    attempt: int
    ranks: List[Dict[str, Any]]
    warm: Optional[Dict[str, Any]] = None


class Stop(NamedTuple):
    """SIGTERM to every process of the run on the node, SIGKILL after grace_s (0: at once).

    hurry: log bytes that have not been sent by then are not waited for, and stay in the spool folder.
    """

    attempt: int
    grace_s: float
    hurry: bool = False


class TakeStacks(NamedTuple):
    """Find out what every rank here is doing, without ending one; answered by `StacksTaken`."""

    attempt: int


class AskRanks(NamedTuple):
    """Ask something of these ranks, all on the node, while they train: see distperf.requests."""

    attempt: int
    ranks: List[int]
    request: str


class Ping(NamedTuple):
    """Renews the lease. received: counted messages that the controller has of this agent."""

    received: int = 0


class Relay(NamedTuple):
    """Instead of Configure: join this connection to the agent of that run that already serves the node.

    logs: bytes of each rank's log of `attempt` that the controller has; used when that agent is found dead.
    """

    run_id: str
    token: str
    attempt: int
    logs: Dict[str, int]


class Attach(NamedTuple):
    """Through a relay, to the agent that was found: go on from here. received, attempt, logs: as above."""

    received: int
    attempt: int
    logs: Dict[str, int]


class Bye(NamedTuple):
    """Nothing more is wanted: end what is left, remove the spool folder, exit."""


# Agent to controller.


class Hello(NamedTuple):
    """First message. Facts: see launcher.agent.facts."""

    version: int
    facts: Dict[str, Any]


class Answer(NamedTuple):
    """The value of an `Ask`, or why there is none."""

    id: int
    value: Any
    error: Optional[str]


class Started(NamedTuple):
    """The rank's process exists (its exec succeeded)."""

    attempt: int
    rank: int
    pid: int


class Exited(NamedTuple):
    """The rank has ended. code is None when a signal ended it; error says why it could not even be started.

    oom: how memory was the kernel's reason to kill it, where that is known.
    """

    attempt: int
    rank: int
    code: Optional[int]
    signal: Optional[str]
    log_tail: str
    error: Optional[str]
    oom: Optional[str] = None


class Record(NamedTuple):
    """One record of a rank's report pipe (distperf.contract)."""

    attempt: int
    rank: int
    record: Dict[str, Any]


class Heartbeat(NamedTuple):
    """The agent is here. steps: newest step per rank that has reported one since the last heartbeat.

    received: counted messages that the agent has of its controller.
    """

    attempt: int
    steps: Dict[str, int]
    received: int


class Figures(NamedTuple):
    """Numbers every few seconds, and once more when an attempt is over (launcher.agent.figures).

    ranks: rank -> steps since the last ones, and seconds of each part a step. node: CPU, memory, network, devices.
    """

    attempt: int
    ranks: Dict[str, Dict[str, float]]
    node: Dict[str, Any]


class Trace(NamedTuple):
    """A piece of a rank's trace, in order; data: base64; last: with it the trace is whole."""

    attempt: int
    rank: int
    id: str
    data: str
    last: bool


class StacksTaken(NamedTuple):
    """rank -> {state, wait, stack, note, collectives}: see launcher.agent.stacks."""

    attempt: int
    looks: Dict[str, Dict[str, Any]]


class Relayed(NamedTuple):
    """found: from here on the other agent speaks. Else it is dead, and what it left of its logs has been sent."""

    found: bool


class Attached(NamedTuple):
    """The agent goes on. received: as in Heartbeat."""

    received: int


class Signalled(NamedTuple):
    """The agent got SIGTERM, SIGUSR1 or SIGUSR2 from SLURM, and its ranks as well: the job shall end."""

    signal: str


class Remark(NamedTuple):
    """A sentence for the run's story."""

    text: str


class Idle(NamedTuple):
    """No process of the attempt is left on the node and every log byte has been sent.

    unsent: after a Stop in a hurry, rank -> bytes at the end of its log that were not; its log stays in `folder`.
    """

    attempt: int
    unsent: Dict[str, int] = {}
    folder: str = ""


_KINDS = (
    Configure, Ask, Start, Stop, TakeStacks, AskRanks, Ping, Relay, Attach, Bye,
    Hello, Answer, Started, Exited, Record, Heartbeat, Figures, Trace, StacksTaken, Signalled, Remark, Relayed,
    Attached, Idle,
)  # fmt: skip
Message = Union[
    Configure, Ask, Start, Stop, TakeStacks, AskRanks, Ping, Relay, Attach, Bye,
    Hello, Answer, Started, Exited, Record, Heartbeat, Figures, Trace, StacksTaken, Signalled, Remark, Relayed,
    Attached, Idle,
]  # fmt: skip
_CLASSES: Dict[str, Type[Any]] = {cls.__name__: cls for cls in _KINDS}

# Sent anew with every heartbeat or connection, so nothing is lost with them; and figures, which others follow.
_UNCOUNTED = (Ping, Heartbeat, Figures, Hello, Relay, Relayed, Attach, Attached)


def counted(message: Any) -> bool:
    """True for a message that must not be lost with a link: both sides count these, and keep them until they arrived.

    As one connection delivers in order, the number of messages received says which ones are missing.
    """
    return isinstance(message, _KINDS) and not isinstance(message, _UNCOUNTED)


class Kept:
    """Counted frames that the peer may not have yet, oldest first."""

    def __init__(self) -> None:
        self._frames: Deque[bytes] = deque()
        self._acknowledged = 0

    def add(self, frame: bytes) -> None:
        """Keep a frame that is being sent."""
        self._frames.append(frame)

    def acknowledge(self, received: int) -> None:
        """The peer has received so many in all."""
        while self._acknowledged < received and self._frames:
            self._frames.popleft()
            self._acknowledged += 1

    def missing(self, received: int) -> List[bytes]:
        """What to send again to a peer that has received so many in all."""
        self.acknowledge(received)
        return list(self._frames)


class LogBytes(NamedTuple):
    """What a rank wrote, from `offset` of its log on."""

    attempt: int
    rank: int
    offset: int
    data: bytes


class BadFrame(ValueError):
    """The peer sent something that is not this protocol."""


def encode(message: Message) -> bytes:
    """A message as one frame."""
    payload = json.dumps([type(message).__name__, *message]).encode("ascii")
    return _HEAD.pack(len(payload) + 1, ord("M")) + payload


def encode_log(attempt: int, rank: int, offset: int, data: bytes) -> bytes:
    """Log bytes as one frame."""
    return _HEAD.pack(len(data) + 1 + _LOG.size, ord("L")) + _LOG.pack(attempt, rank, offset) + data


def decode(kind: int, payload: bytes) -> Union[Message, LogBytes]:
    """One frame's content. Raises BadFrame."""
    try:
        if kind == ord("L"):
            attempt, rank, offset = _LOG.unpack_from(payload)
            return LogBytes(attempt, rank, offset, payload[_LOG.size :])
        if kind == ord("M"):
            name, *fields = json.loads(payload.decode("ascii"))
            message: Message = _CLASSES[name](*fields)
            return message
    except (ValueError, RecursionError, KeyError, TypeError, struct.error) as error:
        raise BadFrame("unreadable frame: %s" % error) from None
    raise BadFrame("unknown frame kind %d" % kind)


class FrameReader:
    """Cuts a byte stream into frames. With a nonce, everything before the marker line is noise and kept aside."""

    def __init__(self, nonce: Optional[str] = None) -> None:
        self._buffer = bytearray()
        self._marker = None if nonce is None else marker(nonce)
        self._noise = b""

    @property
    def noise(self) -> bytes:
        """What came before the marker, as far as it is kept; all of it while there is no marker."""
        return self._noise if self._marker is None else self._noise + bytes(self._buffer)

    def feed(self, data: bytes) -> Iterator[Union[Message, LogBytes]]:
        """Yield every complete frame. Raises BadFrame; the stream cannot be used after that."""
        self._buffer += data
        if self._marker is not None and not self._skip_noise():
            return
        start = 0
        try:
            while len(self._buffer) - start >= _HEAD.size:
                length, kind = _HEAD.unpack_from(self._buffer, start)
                if not 1 <= length <= MAX_FRAME_BYTES:
                    raise BadFrame("frame of %d bytes" % length)
                end = start + 4 + length
                if len(self._buffer) < end:
                    break
                payload = bytes(self._buffer[start + _HEAD.size : end])
                start = end
                yield decode(kind, payload)
        finally:
            del self._buffer[:start]

    def _skip_noise(self) -> bool:
        assert self._marker is not None
        at = self._buffer.find(self._marker)
        keep = len(self._buffer) - len(self._marker) + 1 if at < 0 else at
        if keep > 0:
            self._noise = (self._noise + bytes(self._buffer[:keep]))[-MAX_NOISE_BYTES:]
            del self._buffer[:keep]
        if at < 0:
            return False
        del self._buffer[: len(self._marker)]
        self._marker = None
        return True


def marker(nonce: str) -> bytes:
    """The line after which an agent's output counts."""
    return b"\0distperf " + nonce.encode("ascii") + b"\n"
