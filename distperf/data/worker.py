"""A process that makes batches ahead of a rank: what it does, and how the rank starts it.

It is forked, so that it has the rank's open data at no cost, and shares pieces of memory with it that have no name
anywhere: nothing is left behind when either is killed. It touches no device and no collective.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import json
import mmap
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Sequence
from dataclasses import asdict
from multiprocessing.connection import Connection, Pipe
from typing import Any

import numpy as np
import torch

from distperf.data.batch import Batch, Gather, Order
from distperf.errors import DataError, DatasetFailed, DistperfError, WorkerFailed

PR_SET_PDEATHSIG = 1
TICK_S = 0.5
FIRST_S = 600.0  # for a worker's first batch: what is read may have to be found again, or files be opened


class Worker:
    """The rank's side of one worker, which fills slots in the order in which it is asked."""

    def __init__(self, gather: Gather, name: str, slots: int) -> None:
        self.name = name
        shape = gather.shape
        self._memory = mmap.mmap(-1, slots * int(np.prod(shape)) * 8)
        self.slots: list[Batch] = list(np.frombuffer(self._memory, np.int64).reshape(slots, *shape))
        self._pipe, theirs = Pipe()
        self._is_new, self._code = True, 0
        self.pid = _fork(lambda: serve(theirs, gather, self.slots))
        theirs.close()

    def ask(self, order: Order, slot: int) -> None:
        """Order a batch into a slot. A worker that is gone is noticed when it is waited for."""
        with contextlib.suppress(OSError):
            self._pipe.send_bytes(json.dumps({**asdict(order), "slot": slot}).encode())

    def wait(self, timeout_s: float) -> Any:
        """Until its next slot is full; returns the state that belongs to it.

        Raises:
            WorkerFailed: it was killed, or has owed the batch for `timeout_s`, its first one for FIRST_S.
            DataError: it could not make the batch, and has said why.
        """
        waited_s, allowed_s = 0.0, max(timeout_s, FIRST_S) if self._is_new else timeout_s
        while not self._pipe.poll(TICK_S):
            waited_s += TICK_S
            if self._ended():
                raise WorkerFailed(self._epitaph())
            if waited_s >= allowed_s:
                os.kill(self.pid, signal.SIGUSR2)  # it writes its stack to the rank's log, if it still can
                self._pipe.poll(TICK_S)
                raise WorkerFailed(
                    f"{self.name} (process {self.pid}) has owed a batch for {allowed_s:g} s; its stack stands above, "
                    "unless it is stopped. Look at what it reads from, or make data.worker_timeout_s longer"
                )
        try:
            answer = json.loads(self._pipe.recv_bytes())
        except (EOFError, OSError):
            _, self._code = os.waitpid(self.pid, 0)
            raise WorkerFailed(self._epitaph()) from None
        if "error" in answer:
            raise (DatasetFailed if answer["is_theirs"] else DataError)(f"{self.name}: {answer['error']}")
        self._is_new = False
        return answer["state"]

    def close(self) -> None:
        """End the process, which holds nothing that could be lost."""
        self._pipe.close()
        if not self._ended():
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)

    def _ended(self) -> bool:
        try:
            pid, code = os.waitpid(self.pid, os.WNOHANG)
        except ChildProcessError:  # it has been waited for
            return True
        if pid:
            self._code = code
        return pid != 0

    def _epitaph(self) -> str:
        code = os.waitstatus_to_exitcode(self._code)
        if code >= 0:
            return f"{self.name} (process {self.pid}) ended with code {code}; what it said stands above"
        return (
            f"{self.name} (process {self.pid}) was killed by {signal.Signals(-code).name} (by a person, or by the "
            "kernel when memory ran out: look at dmesg); fewer data.workers take less memory"
        )


def serve(pipe: Connection, gather: Gather, slots: Sequence[Batch]) -> None:
    """A worker's life: fill the slots that it is told to, until the rank is gone."""
    while True:
        try:
            order = json.loads(pipe.recv_bytes())
        except EOFError:
            return
        answer: dict[str, Any]
        try:
            batch, state = gather(Order(order["first"], order["upto"]))
            slots[order["slot"]][:] = batch
            answer = {"state": state}
        except DistperfError as error:
            answer = {"error": str(error), "is_theirs": isinstance(error, DatasetFailed)}
        pipe.send_bytes(json.dumps(answer).encode())


def _fork(work: Any) -> int:
    """A child that does `work` and nothing else; returns its process id, to the parent alone."""
    parent = os.getpid()
    with warnings.catch_warnings():
        # Python warns of threads that hold locks when another forks. Ours are torch's, which a worker has no use for.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        _settle_in(parent)
        work()
        code = 0
    finally:  # never back into the rank's own story
        if code:
            traceback.print_exc()
        sys.stderr.flush()
        os._exit(code)


def _settle_in(parent: int) -> None:
    """Die with the rank, leave stop requests to it, say where it is when asked, and use one thread."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    faulthandler.register(signal.SIGUSR2, file=2, all_threads=False)
    torch.set_num_threads(1)
