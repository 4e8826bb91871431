"""Warm start over a run's attempts on this node: when the nursery is started, whether ranks wait for it, its end."""

import os
import selectors
import time
from typing import Any, Callable, Dict, List, Optional, Tuple

from launcher import protocol
from launcher.agent import processes
from launcher.agent.nursery import Nursery, modules_for
from launcher.agent.spool import Spool

PRELOAD_AFTER_S = 10.0  # after ranks that do not wait for it: their own imports come first


class WarmStart:
    """At most one nursery, kept from attempt to attempt. A failure of it is told, and costs no rank."""

    def __init__(
        self, selector: selectors.BaseSelector, spool: Callable[[], Spool], say: Callable[[str], None]
    ) -> None:
        self.nursery: Optional[Nursery] = None
        self._selector = selector
        self._spool = spool
        self._say = say
        self._due: Optional[float] = None
        self._order: Dict[str, Any] = {}
        self._modules: List[str] = []
        self._wait = False
        self._off = False

    def begin(self, start: protocol.Start) -> None:
        """An attempt begins: see to it that a nursery is on its way where one is wanted."""
        self._due, self._wait = None, False
        if start.warm is None or not start.ranks or self._off:
            return
        self._order = start.ranks[0]
        self._modules = modules_for(start.warm, self._order)
        self._wait = bool(self._modules) and start.warm["wait"]
        if self._modules and self.nursery is None:
            self._due = time.monotonic() + (0.0 if self._wait else PRELOAD_AFTER_S)
            self.keep_time(time.monotonic())

    def keep_time(self, now: float) -> None:
        """Start the nursery when it is due."""
        if self._due is None or now < self._due:
            return
        self._due = None
        env = processes.rank_environment(os.environb, self._order)
        try:
            self.nursery = Nursery(self._order, env, self._modules, self._spool())
        except OSError as error:
            self._turn_off(str(error))
            return
        self._selector.register(self.nursery.link, selectors.EVENT_READ, lambda fd: self._read())

    def must_wait(self) -> bool:
        """Whether ranks wait for a nursery that is still importing."""
        nursery = self.nursery
        return nursery is not None and not nursery.ready and self._wait

    def spare(self) -> Tuple[int, ...]:
        """Processes that carry the run's token and are no part of an attempt."""
        return () if self.nursery is None else (self.nursery.pid,)

    def drop_if_bad(self) -> None:
        """Let go of a nursery that cannot fork (any more); ranks are exec'ed from here on, or from a new one."""
        if self.nursery is not None and self.nursery.why_not:
            why, was_ready = self.nursery.why_not, self.nursery.was_ready
            self.close()
            if was_ready:
                self._say("the process that ranks are forked from has ended (%s)" % why)
            else:
                self._turn_off(why)

    def close(self) -> None:
        """End the nursery, if there is one."""
        self._due = None
        if self.nursery is not None:
            self._selector.unregister(self.nursery.link)
            self.nursery.close()
            self.nursery = None

    def _read(self) -> None:
        assert self.nursery is not None
        self.nursery.read()
        self.drop_if_bad()

    def _turn_off(self, why: str) -> None:
        self._off = True
        self._say("no warm start, ranks are started directly: %s" % why)
