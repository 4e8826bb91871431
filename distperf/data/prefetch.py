"""Batches read ahead by workers, and the same ones without any."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from distperf.data.batch import Batch, Gather, Order
from distperf.data.own import OwnStream
from distperf.data.worker import Worker

AHEAD = 2  # batches that each worker is given to do

Orders = Callable[[int], Order]  # the micro-batch of a number, counted over the run


class Direct:
    """Makes each batch when it is asked for."""

    def __init__(self, gather: Gather, orders: Orders) -> None:
        self._gather, self._orders = gather, orders

    def take(self, number: int) -> tuple[Batch, Any]:
        """Micro-batch `number`, and the state that belongs to it."""
        return self._gather(self._orders(number))


class Prefetch:
    """Has batches made ahead by processes: micro-batch n by worker n modulo their number, AHEAD of them each at a time.

    So which sample a batch holds is decided by its number alone, whatever the number of workers and their speed.
    Workers start with the first batch that is asked for, and start again where batches are asked for out of order. A
    dataset that is read forwards only has one worker.
    """

    def __init__(self, gather: Gather, orders: Orders, end: int, workers: int, timeout_s: float) -> None:
        """`end`: how many micro-batches the run has."""
        self._gather, self._orders, self._end, self._timeout_s = gather, orders, end, timeout_s
        self._count = 1 if isinstance(gather.store, OwnStream) else workers
        self._workers: list[Worker] = []
        self._next = -1

    def take(self, number: int) -> tuple[Batch, Any]:
        """Micro-batch `number`, and the state that belongs to it.

        Raises: DataError, as `Worker.wait`.

        Cost: one copy of the batch.
        """
        assert number < self._end, (number, self._end)
        if number != self._next:
            self._start(number)
        worker = self._workers[number % self._count]
        state = worker.wait(self._timeout_s)
        batch = worker.slots[self._slot(number)].copy()
        self._ask(number + self._count * AHEAD)  # into the slot that is free now
        self._next = number + 1
        return batch, state

    def close(self) -> None:
        """End all workers."""
        for worker in self._workers:
            worker.close()
        self._workers = []

    def _start(self, number: int) -> None:
        self.close()
        names = (f"data worker {index + 1} of {self._count}" for index in range(self._count))
        self._workers = [Worker(self._gather, name, AHEAD) for name in names]
        for ahead in range(self._count * AHEAD):
            self._ask(number + ahead)

    def _ask(self, number: int) -> None:
        if number < self._end:
            self._workers[number % self._count].ask(self._orders(number), self._slot(number))

    def _slot(self, number: int) -> int:
        return number // self._count % AHEAD
