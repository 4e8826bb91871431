"""Doing something together: it went well on every rank, or every rank raises the same error."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from distperf.errors import CheckpointCorrupt, CheckpointError, CheckpointSuperseded
from distperf.process_group import exchange

KINDS = {kind.__name__: kind for kind in (CheckpointError, CheckpointCorrupt, CheckpointSuperseded)}


def agreed(what: str, action: Callable[[], Any], group: dist.ProcessGroup | None = None) -> list[Any]:
    """Do something on every rank and return all ranks' results (JSON values). Collective, over `group` or all.

    Raises:
        CheckpointError: on every rank, when it failed on any of them; names these ranks and why. One of KINDS where
            all that failed did so for this.
    """
    try:
        mine: dict[str, Any] = {"result": action()}
    except (OSError, RuntimeError, ValueError, CheckpointError) as error:
        mine = {"error": _reason(error), "kind": type(error).__name__}
    outcomes = exchange(mine, group)
    failed: dict[str, list[int]] = {}
    for rank, outcome in enumerate(outcomes):
        if "error" in outcome:
            failed.setdefault(outcome["error"], []).append(rank)
    if failed:
        kinds = {outcome["kind"] for outcome in outcomes if "error" in outcome}
        kind = KINDS.get(kinds.pop(), CheckpointError) if len(kinds) == 1 else CheckpointError
        raise kind("\n".join(f"{what} (rank {_fold(ranks)}): {why}" for why, ranks in failed.items()))
    return [outcome["result"] for outcome in outcomes]


def _fold(ranks: list[int]) -> str:
    return ",".join(map(str, ranks[:8])) + (",..." if len(ranks) > 8 else "")


def _reason(error: BaseException) -> str:
    """The plain cause."""
    if isinstance(error, OSError) and error.errno:
        return f"{os.strerror(error.errno)}" + (f": {error.filename}" if error.filename else "")
    return str(error)
