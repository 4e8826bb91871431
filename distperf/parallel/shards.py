"""Where stage 3's shards of weights and gradients are: in memory, or on drives while their layer does not compute.

Legend: G groups, which fully_shard gathers one by one: the blocks of a model, and what lies outside them.

    on drives       weights of a group's shards     gradients of them
    forward k       read (k + 1 ahead), gathered
    backward k      read (k - 1 ahead), gathered    reduced, added to those of earlier micro-batches, written
    update k        read (k + 1 ahead), written     read (k + 1 ahead)

In memory are the shards of two or three groups at a time, however many there are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from torch import Tensor

from distperf.measure.memory import storage_bytes
from distperf.optim.clip import squares
from distperf.parallel.materialize import local
from distperf.parallel.rows import Rows

OUTSIDE = -1  # the group of parameters without dims, which are not divided


class Shards(Protocol):
    """The weights and gradients of all rows that a rank owns."""

    def group(self, rows: Rows) -> int:
        """Rows of a group are there together; groups are updated in order."""
        ...

    def filling(self, groups: Sequence[int]) -> Iterator[int]:
        """Each group, whose weights are there, to be set, until the next is asked for."""
        ...

    def expect(self, *, last: bool) -> None:
        """A backward pass begins, the last of a step or not."""
        ...

    def squares(self, rows: Rows) -> Tensor:
        """() float64: the sum of squares of a step's complete gradient."""
        ...

    def updating(self, groups: Sequence[int]) -> Iterator[int]:
        """Each group that has rows to update, whose weights and gradients are there until the next is asked for."""
        ...

    def gradient(self, rows: Rows) -> Tensor:
        """(rows,) fp32, flat."""
        ...

    def stored(self, rows: Rows) -> Tensor:
        """(rows,) fp32, flat: live storage of the weights, between updates; see `settle`."""
        ...

    def settle(self) -> None:
        """What `stored` gave was overwritten, or is done with."""
        ...

    def forget(self) -> None:
        """Let go of a step's gradients."""
        ...

    def memory(self) -> dict[str, int]:
        """Bytes: parameters_bytes and gradients_bytes at their peak; disk_bytes."""
        ...

    def close(self) -> None:
        """Remove what would outlive the process."""
        ...


class InMemory:
    """Shards that stay where fully_shard has them."""

    def __init__(self, rows: Sequence[Rows]) -> None:
        self._rows = rows
        self._gradients_bytes = 0

    def group(self, rows: Rows) -> int:
        """All at once."""
        return 0

    def filling(self, groups: Sequence[int]) -> Iterator[int]:
        """All are there."""
        yield from groups

    def expect(self, *, last: bool) -> None:
        """Nothing to do."""

    def squares(self, rows: Rows) -> Tensor:
        """As `Shards.squares`."""
        return squares(rows.grad.contiguous())

    def updating(self, groups: Sequence[int]) -> Iterator[int]:
        """Nothing moves."""
        self._gradients_bytes = self._live_gradients()
        yield from groups

    def gradient(self, rows: Rows) -> Tensor:
        """A view of what fully_shard has."""
        return rows.grad.flatten()

    def stored(self, rows: Rows) -> Tensor:
        """The weights themselves."""
        return rows.weights.view(-1)

    def settle(self) -> None:
        """Nothing to do."""

    def forget(self) -> None:
        """As `Shards.forget`."""
        for rows in self._rows:
            rows.parameter.grad = None

    def memory(self) -> dict[str, int]:
        """Gradients are those of the last step, which were let go of since."""
        return {
            "parameters_bytes": storage_bytes(rows.weights for rows in self._rows),
            "gradients_bytes": max(self._gradients_bytes, self._live_gradients()),
        }

    def close(self) -> None:
        """Nothing of it outlives the process."""

    def _live_gradients(self) -> int:
        grads = (rows.parameter.grad for rows in self._rows)
        return storage_bytes(local(grad.detach()) for grad in grads if grad is not None)
