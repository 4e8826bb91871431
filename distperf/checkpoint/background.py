"""A save beside training: a thread copies the state to host memory, and writes that.

Only an update changes what is saved. So the copy is made beside the next step's passes, and training waits for what is
left of it before that step's update: mostly for nothing (source: CheckFreq, Mohan et al., FAST 2021).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Event, Thread
from typing import Generic, TypeVar

import torch
from torch import Tensor

from distperf.checkpoint.shards import State, saving
from distperf.errors import CheckpointError
from distperf.parallel.pieces import OwnedTensor, Piece


class HostCopy:
    """Host memory for what this rank saves, used again for each save, and from a GPU page-locked.

    Peak extra bytes: of all pieces that this rank saves; from the first save on.
    """

    def __init__(self) -> None:
        self._buffers: dict[tuple[str, tuple[int, ...]], Tensor] = {}

    @torch.no_grad()
    def take(self, state: State) -> State:
        """The pieces that this rank saves, as they are now. On a GPU, by the current stream."""
        copies = {
            fqn: OwnedTensor(
                owned.shape, owned.dtype, tuple(self._copy(fqn, piece) for piece in owned.pieces)
            )
            for fqn, owned in saving(state).items()
        }
        if torch.cuda.is_available():
            torch.cuda.current_stream().synchronize()
        return copies

    def _copy(self, fqn: str, piece: Piece) -> Piece:
        buffer = self._buffers.get((fqn, piece.offsets))
        if buffer is None:
            buffer = torch.empty(
                piece.tensor.shape, dtype=piece.tensor.dtype, pin_memory=piece.tensor.is_cuda
            )
            self._buffers[fqn, piece.offsets] = buffer
        buffer.copy_(piece.tensor, non_blocking=True)
        return Piece(piece.offsets, buffer)


class Snapshot:
    """A state that is copied by another thread, and changed only after `wait`. Made where it was last changed."""

    def __init__(self, copy: HostCopy, state: State) -> None:
        self._copy, self._state = copy, state
        self._taken = Event()
        self._device = next(
            (p.tensor.device for o in state.values() for p in o.pieces if p.tensor.is_cuda), None
        )
        self._changed = (
            None if self._device is None else torch.cuda.current_stream(self._device).record_event()
        )

    def take(self) -> State:
        """Copy it. On a GPU beside what training does there."""
        try:
            if self._device is None or self._changed is None:
                return self._copy.take(self._state)
            stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
            stream.wait_event(self._changed)
            with torch.cuda.stream(stream):
                return self._copy.take(self._state)
        finally:
            self._state = {}
            self._taken.set()

    def wait(self) -> float:
        """Until it is copied. Seconds that this took."""
        began = time.monotonic()
        self._taken.wait()
        return time.monotonic() - began


T = TypeVar("T")


class SaveThread(Generic[T]):
    """One save by a thread of its own. All ranks begin theirs in the same order, and the next only after this one.

    `step`: what is saved is the state after it; `save` does it, and raises CheckpointError where that fails.
    """

    def __init__(self, step: int, save: Callable[[], T]) -> None:
        self.step = step
        self._ended = Event()
        self._saved: T | None = None
        self._error: CheckpointError | None = None
        Thread(target=self._run, args=(save,), name="distperf-checkpoint", daemon=True).start()

    def _run(self, save: Callable[[], T]) -> None:
        try:
            self._saved = save()
        except CheckpointError as error:
            self._error = error
        except RuntimeError as error:  # what torch raises where a peer is gone: this rank's training ends too
            self._error = CheckpointError(f"cannot save step {self.step}: {error}")
        finally:
            self._ended.set()

    @property
    def has_ended(self) -> bool:
        """It is over, well or not."""
        return self._ended.is_set()

    @property
    def failed(self) -> bool:
        """It is over, and not well."""
        return self.has_ended and self._saved is None

    def result(self) -> T:
        """Wait for the end, and return what `save` did. Raises what it raised."""
        self._ended.wait()
        if self._saved is not None:
            return self._saved
        raise self._error or CheckpointError(
            f"cannot save step {self.step}: the thread that writes ended early"
        )
