"""Bytes that tensors and processes really hold."""

from __future__ import annotations

import resource
import sys
from collections.abc import Iterable

from torch import Tensor


def storage_bytes(tensors: Iterable[Tensor]) -> int:
    """Bytes of the storages behind these tensors, each storage counted once however many views share it."""
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
    return sum(storages.values())


def peak_rss_bytes() -> int:
    """The most resident memory this process ever had."""
    unit = 1 if sys.platform == "darwin" else 1024  # ru_maxrss is in bytes there, in KiB elsewhere
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
