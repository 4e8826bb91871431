"""Transient buffers, used again and again: gradients on their way, slices received from other ranks."""

from __future__ import annotations

import threading

import torch
from torch import Tensor

from distperf.measure.memory import storage_bytes


class Scratch:
    """Flat buffers of one device, lent and taken back.

    Buckets differ a little in size. So that one buffer serves them all, a new buffer is made `usual` elements
    long unless less than half of that is wanted (or more than all of it); nobody is lent more than twice the need.
    """

    def __init__(self, device: torch.device, usual: int) -> None:
        self._device = device
        self._usual = usual
        self._free: list[Tensor] = []
        self._all: list[Tensor] = []
        self._lock = threading.Lock()  # lent by one thread, given back by another

    def take(self, numel: int, dtype: torch.dtype) -> Tensor:
        """(numel,) of `dtype`, contents undefined: the smallest free buffer that fits, else a new one."""
        with self._lock:
            return self._take(numel, dtype)[:numel]

    def _take(self, numel: int, dtype: torch.dtype) -> Tensor:
        fitting = [b for b in self._free if b.dtype == dtype and numel <= b.numel() <= 2 * numel + 1]
        if fitting:
            buffer = min(fitting, key=Tensor.numel)
            self._free = [b for b in self._free if b is not buffer]
        else:
            length = self._usual if self._usual // 2 <= numel <= self._usual else numel
            buffer = torch.empty(length, dtype=dtype, device=self._device)
            self._all.append(buffer)
        return buffer

    def give(self, lent: Tensor) -> None:
        """Take back what `take` lent."""
        storage = lent.untyped_storage().data_ptr()
        with self._lock:
            self._free.extend(b for b in self._all if b.untyped_storage().data_ptr() == storage)

    @property
    def bytes(self) -> int:
        """What all buffers ever made hold: the peak of transient memory."""
        return storage_bytes(self._all)
