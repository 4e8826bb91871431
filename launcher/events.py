"""What can happen to a run, as data. `t` is seconds on the controller's clock since the run was created.

Events marked "kept" are lines of events.jsonl; replaying those through `supervise.advance` gives the run's state, which
is how `status`, `report` and `ps` see a run. Clocks of nodes appear nowhere: order is order of receipt.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any, ClassVar


@dataclass(frozen=True)
class Event:
    """Root of the kinds below."""

    kept: ClassVar[bool] = True
    t: float


@dataclass(frozen=True)
class RunCreated(Event):
    """First line: what was planned. ranks: rank, local_rank, host, node_rank, coordinates of each. pool: host and
    slots of all hosts in order, spares last; empty in journals of before there were spares.
    """

    run_id: str
    name: str
    steps: int | None
    ranks: list[dict[str, Any]]
    policy: dict[str, Any]  # fields of state.Policy
    controller: dict[
        str, Any
    ]  # host, pid, created (process start time): to tell a dead controller from a live one; socket (path) or null
    version: str
    pool: list[dict[str, Any]] = field(default_factory=list)
    attempts_before: int = 0  # of the same run, in jobs that were requeued


@dataclass(frozen=True)
class AttemptBegan(Event):
    """Decision: another attempt. Node 0 is asked for a port next."""

    attempt: int


@dataclass(frozen=True)
class PortPicked(Event):
    """Node 0 found a port for the attempt's rendezvous: rank 0 will listen there. Ranks are being started."""

    attempt: int
    address: str
    port: int


@dataclass(frozen=True)
class RankStarted(Event):
    """The rank's process exists."""

    attempt: int
    rank: int
    pid: int


@dataclass(frozen=True)
class RankReported(Event):
    """A record of distperf.contract, but for progress and metrics, which have ways of their own."""

    attempt: int
    rank: int
    record: dict[str, Any]


@dataclass(frozen=True)
class RankExited(Event):
    """The rank has ended, or could not be started (error). oom: the kernel killed it for memory, and this is how."""

    attempt: int
    rank: int
    code: int | None
    signal: str | None
    log_tail: str
    error: str | None
    oom: str | None = None


@dataclass(frozen=True)
class Progressed(Event):
    """Newest step by rank set (`0-7`): kept every few seconds, folded, so that a long run's journal stays small."""

    attempt: int
    steps: dict[str, int]


@dataclass(frozen=True)
class Stepped(Event):
    """Newest steps by rank, as soon as they are heard: what stalls are judged on."""

    kept: ClassVar[bool] = False
    attempt: int
    steps: dict[int, int]


@dataclass(frozen=True)
class Wrote(Event):
    """A rank of the attempt has written something."""

    kept: ClassVar[bool] = False
    attempt: int


@dataclass(frozen=True)
class Stalled(Event):
    """Decision: nothing has moved for too long. The ranks' stacks are taken next."""

    attempt: int
    why: str


@dataclass(frozen=True)
class StacksTaken(Event):
    """What a node's ranks were doing: rank (as text) -> look (launcher.stacks)."""

    attempt: int
    host: str
    looks: dict[str, dict[str, Any]]


@dataclass(frozen=True)
class HeldUp(Event):
    """Decision: this rank is what the stalled run waits for."""

    attempt: int
    rank: int


@dataclass(frozen=True)
class Heard(Event):
    """A node's agent has sent something."""

    kept: ClassVar[bool] = False
    host: str


@dataclass(frozen=True)
class NodeIdle(Event):
    """No process of the attempt is left on the node and its logs are complete; or, where it had to be quick, the ends
    of these are missing (rank as text -> bytes), and are found in `folder` there.
    """

    attempt: int
    host: str
    unsent: dict[str, int] = field(default_factory=dict)
    folder: str = ""


@dataclass(frozen=True)
class LinkLost(Event):
    """The channel to the node has ended; its agent may still be there."""

    host: str
    why: str


@dataclass(frozen=True)
class LinkBack(Event):
    """The node's agent goes on over a new channel, and nothing was lost."""

    host: str


@dataclass(frozen=True)
class NodeLost(Event):
    """The node's agent is gone, or nothing came for so long that its ranks have ended themselves."""

    host: str
    why: str


@dataclass(frozen=True)
class NodeBack(Event):
    """A fresh agent serves the node again."""

    host: str


@dataclass(frozen=True)
class ReopenFailed(Event):
    """A lost host could not be reached again at the first try; others follow."""

    host: str
    why: str


@dataclass(frozen=True)
class Placed(Event):
    """The next attempt has been planned anew: who holds which place ("": nobody), and the ranks as in RunCreated."""

    places: list[str]
    ranks: list[dict[str, Any]]


@dataclass(frozen=True)
class Unplaceable(Event):
    """The recipe has no plan for the hosts that are left."""

    why: str


@dataclass(frozen=True)
class Restarting(Event):
    """Decision: the failed attempt is followed by another after wait_s."""

    wait_s: float
    reason: str


@dataclass(frozen=True)
class Ended(Event):
    """Decision: the run is over. Last line of a journal that is complete."""

    state: str
    exit_code: int


@dataclass(frozen=True)
class Interrupted(Event):
    """The run shall end: SIGINT (Ctrl-C, `distperf stop`), SIGTERM, or SIGUSR1 (preemption, a time limit)."""

    signal: str


@dataclass(frozen=True)
class Tick(Event):
    """Time passes."""

    kept: ClassVar[bool] = False


@dataclass(frozen=True)
class Noted(Event):
    """For people: something worth a line in the run's story that changes no state."""

    text: str
    fields: dict[str, Any] = field(default_factory=dict)


_KINDS: dict[str, type[Event]] = {cls.__name__: cls for cls in Event.__subclasses__()}


def to_line(event: Event) -> dict[str, Any]:
    """The event as a JSON object: its kind under "event", then its fields."""
    values = {f.name: getattr(event, f.name) for f in dataclasses.fields(event)}
    return {"event": type(event).__name__, **values}


def from_line(line: dict[str, Any]) -> Event | None:
    """Inverse of `to_line`; None for a kind or shape this version does not know (a newer one wrote it)."""
    kind = _KINDS.get(str(line.get("event")))
    if kind is None:
        return None
    names = {f.name for f in dataclasses.fields(kind)}
    try:
        return kind(**{name: value for name, value in line.items() if name in names})
    except TypeError:
        return None
