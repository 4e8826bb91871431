"""What is known about a run: frozen values that `supervise.advance` turns into the next ones."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from launcher.actions import Action
from launcher.allot import Member
from launcher.stall import Pace

FAILED_GRACE_S = 2.0


@dataclass(frozen=True)
class Policy:
    """The few numbers of the recipe's launch section that supervision decides by."""

    max_restarts: int
    heartbeat_timeout_s: float
    lease_s: float
    grace_s: float
    script: bool  # a script of the user's: exits 0 when it likes, tells no "done"
    min_nodes: int | None = None  # None: all of them
    stall_timeout_s: float | None = None  # None: auto
    in_job: bool = False  # of a cluster's: what ends the job is told to its processes all at once

    @property
    def failed_grace_s(self) -> float:
        """Between SIGTERM and SIGKILL when an attempt has failed. Each rank of a script may have something to save;
        ours save together, and one is missing.
        """
        return self.grace_s if self.script else min(self.grace_s, FAILED_GRACE_S)


@dataclass(frozen=True)
class Rank:
    """One rank of the current attempt. state: pending | running | done | failed | stopped."""

    rank: int
    local_rank: int
    host: str
    node_rank: int
    coordinates: dict[str, int] = field(default_factory=dict)
    pid: int | None = None
    state: str = "pending"
    step: int = 0
    phase: str | None = None
    memory: dict[str, int] = field(default_factory=dict)
    error: dict[str, Any] | None = None  # its error record, before it exits
    says_done: bool = False

    @property
    def over(self) -> bool:
        """Its process has ended."""
        return self.state in ("done", "failed", "stopped")


@dataclass(frozen=True)
class Stalled:
    """A stall in which the ranks' stacks are being taken. looks: rank -> what its agent says of it."""

    t: float
    why: str
    looks: dict[int, dict[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class Unsent:
    """Ends of logs that a second Ctrl-C did not wait for, and where they are on their host."""

    folder: str
    num_bytes: int


@dataclass(frozen=True)
class Failure:
    """The first failure of an attempt, and who fell as a consequence."""

    host: str
    rank: int | None  # None: the node itself
    cause: str  # exit | signal | import | connect | node_lost | stall
    exit_code: int | None
    signal: str | None
    message: str
    traceback: str | None
    log_tail: str
    pid: int | None = None
    attempt: int = 1
    step: int = 0
    retry: bool = True  # False: another try would end the same way
    followers: tuple[int, ...] = ()
    stacks: tuple[dict[str, Any], ...] = ()  # of a stall: what all ranks were doing (launcher.stacks.groups)


@dataclass(frozen=True)
class RunState:
    """A run as seen at one moment.

    state: queued | starting | running | stalled | restarting | stopping | finished | failed | stopped ("lost" is no
    state of its own: it is what a reader calls a run whose controller has died without an end).
    """

    run_id: str
    name: str
    policy: Policy
    ranks: tuple[Rank, ...]
    steps: int | None
    controller: dict[str, Any]
    pool: tuple[Member, ...] = ()  # all hosts in order, spares last
    places: tuple[str, ...] = ()  # who holds which: see launcher.allot
    state: str = "queued"
    attempt: int = 0
    attempts_before: int = 0  # of the same run, in jobs that were requeued: they are not counted as restarts
    began_t: float = 0.0
    t: float = 0.0
    heard: dict[str, float] = field(default_factory=dict)
    unreachable: frozenset[str] = frozenset()
    cut: frozenset[str] = frozenset()  # the channel has ended and is being made anew; the agent may be there
    lost: dict[str, float] = field(default_factory=dict)  # host -> when; its agent is gone
    unreached: dict[str, str] = field(
        default_factory=dict
    )  # lost hosts that could not be connected to, and why
    idle: frozenset[str] = frozenset()
    pace: Pace = field(
        default_factory=Pace
    )  # of this attempt; not in the journal, as only decisions follow from it
    stalled: Stalled | None = None
    failure: Failure | None = None  # of this attempt
    failed_t: float = 0.0  # when the attempt was found to fail
    first_failure: Failure | None = None  # of the attempt that decided the run, or the newest one
    in_flight: bool = False  # an attempt's ranks have been started and not all nodes are idle again
    rank_hosts: dict[int, tuple[str, ...]] = field(default_factory=dict)  # attempt -> host of each rank
    restart_at: float | None = None
    asked: tuple[str, ...] | None = None  # places for which a placement is being made
    unplaceable: str | None = None  # why there is no placement for them
    failed_hosts: tuple[str, ...] = ()  # of each attempt's first failure
    best_step: int = 0  # furthest step of earlier attempts
    fruitless: int = 0  # attempts in a row that got no further than best_step
    interrupted: str | None = None
    interrupts: int = 0
    unsent: dict[str, Unsent] = field(default_factory=dict)  # by host
    checkpoint: str | None = None
    notes: tuple[str, ...] = ()
    exit_code: int | None = None

    @property
    def hosts(self) -> tuple[str, ...]:
        """Hosts with ranks, in node order."""
        return tuple(dict.fromkeys(rank.host for rank in self.ranks))

    @property
    def step(self) -> int:
        """The step that every rank has finished, or the furthest seen where ranks do not all report."""
        reported = [rank.step for rank in self.ranks if rank.step]
        return min(reported) if reported else 0

    @property
    def over(self) -> bool:
        """The run has ended and its exit code stands."""
        return self.exit_code is not None


Step = tuple[
    RunState, tuple[Action, ...]
]  # what an event comes to: the next state, and what is to be done now


def with_failure(state: RunState, first: Failure) -> RunState:
    """This is the attempt's first failure, as far as is known now."""
    return dataclasses.replace(state, failure=first, first_failure=first)
