"""One thread that finishes what communication began, so that the backward pass need not stop for it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from threading import Thread

Task = Callable[[], None]


class Background:
    """Carries out tasks in the order given. The thread never keeps a process from ending."""

    def __init__(self) -> None:
        self._tasks: SimpleQueue[tuple[Task, Future[None]]] = SimpleQueue()
        Thread(target=_work, args=(self._tasks,), name="distperf-background", daemon=True).start()

    def submit(self, task: Task) -> Task:
        """Start a task; calling what is returned waits for it and raises what it raised."""
        done: Future[None] = Future()
        self._tasks.put((task, done))
        return done.result


def _work(tasks: SimpleQueue[tuple[Task, Future[None]]]) -> None:
    while True:
        task, done = tasks.get()
        try:
            task()
        except RuntimeError as error:  # what torch raises: a peer that is gone, a time limit, no memory
            done.set_exception(error)
        else:
            done.set_result(None)
        del task, done  # hold no buffers while waiting for the next
