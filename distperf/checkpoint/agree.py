"""Doing something together: it went well on every rank, or every rank raises the same error."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from distperf.errors import CheckpointError
from distperf.process_group import exchange


def agreed(what: str, action: Callable[[], Any]) -> list[Any]:
    """Do something on every rank and return all ranks' results (JSON values). Collective.

    Raises:
        CheckpointError: on every rank, when it failed on any of them; names these ranks and why.
    """
    try:
        mine: dict[str, Any] = {"result": action()}
    except (OSError, RuntimeError, ValueError, CheckpointError) as error:
        mine = {"error": _reason(error)}
    outcomes = exchange(mine)
    failed: dict[str, list[int]] = {}
    for rank, outcome in enumerate(outcomes):
        if "error" in outcome:
            failed.setdefault(outcome["error"], []).append(rank)
    if failed:
        raise CheckpointError(
            "\n".join(f"{what} (rank {_fold(ranks)}): {why}" for why, ranks in failed.items())
        )
    return [outcome["result"] for outcome in outcomes]


def _fold(ranks: list[int]) -> str:
    return ",".join(map(str, ranks[:8])) + (",..." if len(ranks) > 8 else "")


def _reason(error: BaseException) -> str:
    """The plain cause: torch's file writer wraps a full disk in an error about its own buffers."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno:
            return f"{os.strerror(cause.errno)}" + (f": {cause.filename}" if cause.filename else "")
        cause = cause.__cause__ or cause.__context__
    return str(error)
