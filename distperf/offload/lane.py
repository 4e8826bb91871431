"""Between a device and its host: gradients travel down as they become ready, new weights back up.

Legend: K elements of a bucket that this rank updates.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from distperf.measure.memory import storage_bytes
from distperf.offload.spans import Span
from distperf.offload.states import host_zeros

HOST = torch.device("cpu")
STAGES = 3  # spans of new weights on their way up at a time

Wait = Callable[[], None]


class Copies(Protocol):
    """Carries bytes over the border while both sides go on."""

    def down(self, into: Tensor, source: Tensor) -> Wait:
        """Copy to the host what the device will have computed; calling what is returned waits for it."""
        ...

    def up(self, into: Tensor, source: Tensor) -> Wait:
        """Copy to the device. `source` may be changed after the wait, `into` be used after `join`."""
        ...

    def join(self) -> None:
        """From here on the device sees all that was sent up."""
        ...


class StreamCopies:
    """Copies on a CUDA device's copy engines, one stream each way, beside what it computes."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._down = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch's
        self._up = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def down(self, into: Tensor, source: Tensor) -> Wait:
        """As `Copies.down`."""
        return self._copy(self._down, into, source)

    def up(self, into: Tensor, source: Tensor) -> Wait:
        """As `Copies.up`."""
        return self._copy(self._up, into, source)

    def join(self) -> None:
        """As `Copies.join`."""
        torch.cuda.current_stream(self._device).wait_stream(self._up)

    def _copy(self, stream: torch.cuda.Stream, into: Tensor, source: Tensor) -> Wait:
        stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(stream):
            into.copy_(source, non_blocking=True)
            event: torch.cuda.Event = stream.record_event()
        return event.synchronize


class Lane:
    """The gradients of spans that are updated on the host, and the way back of their weights."""

    def __init__(
        self, copies: Copies, spans: Sequence[Span], gradients: torch.dtype, working: torch.dtype
    ) -> None:
        self._copies = copies
        self._grads = {span: host_zeros(span.numel, HOST, gradients) for span in spans}
        self._arriving: dict[Span, Wait] = {}
        longest = max((span.numel for span in spans), default=0)
        self._staged = [host_zeros(longest, HOST, working) for _ in range(min(STAGES, len(spans)))]
        self._filling: Tensor | None = None
        self._leaving: deque[tuple[Tensor, Wait]] = deque()

    def send(self, spans: Sequence[Span], grads: Tensor) -> None:
        """Start the gradients' way down; `grads` (K,) are complete, and stay as they are until `gradients`."""
        for span in spans:
            self._arriving[span] = self._copies.down(self._grads[span], grads[span.part])

    def gradients(self, span: Span) -> Tensor:
        """(span,) on the host."""
        self._arriving.pop(span)()
        return self._grads[span]

    def stage(self, span: Span) -> Tensor:
        """(span,) of the working dtype on the host, to be filled before `publish`."""
        if not self._staged:
            buffer, wait = self._leaving.popleft()
            wait()
            self._staged.append(buffer)
        self._filling = self._staged.pop()
        return self._filling[: span.numel]

    def publish(self, working: Tensor) -> None:
        """Start the way up of what `stage` gave, filled with new weights."""
        assert self._filling is not None, "staged first"
        wait = self._copies.up(working, self._filling[: working.numel()])
        self._leaving.append((self._filling, wait))
        self._filling = None

    def join(self) -> None:
        """From here on the device sees all that was published."""
        self._copies.join()

    def forget(self) -> None:
        """Gradients on their way are not wanted."""
        while self._arriving:
            self._arriving.popitem()[1]()

    @property
    def bytes(self) -> int:
        """On the host."""
        return storage_bytes([*self._grads.values(), *self._staged, *(buffer for buffer, _ in self._leaving)])
