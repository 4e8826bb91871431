"""What `supervise.advance` wants done, as data; the controller does it."""

from __future__ import annotations

from dataclasses import dataclass

from launcher.events import AttemptBegan, HeldUp, Restarting, Stalled


@dataclass(frozen=True)
class PickPort:
    """Ask node 0 for a rendezvous port."""


@dataclass(frozen=True)
class StartRanks:
    """Start every rank of the attempt, rendezvous at address:port."""

    attempt: int
    address: str
    port: int


@dataclass(frozen=True)
class StopRanks:
    """SIGTERM, then SIGKILL after grace_s, on all nodes that are not lost; hurry: without waiting for their logs."""

    attempt: int
    grace_s: float
    hurry: bool = False


@dataclass(frozen=True)
class TakeStacks:
    """Ask all nodes what their ranks are doing."""

    attempt: int


@dataclass(frozen=True)
class Relink:
    """Find the agent of a host again whose channel has ended."""

    host: str


@dataclass(frozen=True)
class Reopen:
    """Start a fresh agent on a host whose agent is gone, however often it takes while the run lasts."""

    host: str


@dataclass(frozen=True)
class Place:
    """Plan the next attempt anew for these holders of the run's places ("": nobody)."""

    places: tuple[str, ...]


@dataclass(frozen=True)
class Note:
    """A line for the run's story."""

    text: str


@dataclass(frozen=True)
class GiveUp:
    """A host has been silent for so long that its ranks have ended themselves: treat it as lost."""

    host: str
    why: str


@dataclass(frozen=True)
class Write:
    """Write a decision down; the state has it already."""

    event: AttemptBegan | Restarting | Stalled | HeldUp


@dataclass(frozen=True)
class Finish:
    """The run is over."""

    state: str
    exit_code: int


Action = (
    PickPort | StartRanks | StopRanks | TakeStacks | Relink | Reopen | Place | Note | GiveUp | Write | Finish
)
