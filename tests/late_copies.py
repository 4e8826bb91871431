"""Copies between a device and its host, as late as they may be: whoever forgets to wait sees old values."""

from __future__ import annotations

from torch import Tensor


class Late:
    """Down when waited for, up when waited for or at the next `join`. `most`: under way at a time."""

    def __init__(self) -> None:
        self.pending: list[tuple[Tensor, Tensor]] = []
        self.most = 0

    def down(self, into: Tensor, source: Tensor):
        return lambda: into.copy_(source)

    def up(self, into: Tensor, source: Tensor):
        copy = (into, source)
        self.pending.append(copy)
        self.most = max(self.most, len(self.pending))

        def wait() -> None:
            if any(copy is other for other in self.pending):
                self.pending = [other for other in self.pending if other is not copy]
                into.copy_(source)

        return wait

    def join(self) -> None:
        for into, source in self.pending:
            into.copy_(source)
        self.pending.clear()
