"""`distperf profile`: traces of a few steps of ranks that run, merged, and what they come to."""

from __future__ import annotations

import gzip
import json
import time
import zlib
from pathlib import Path
from typing import Any

from launcher import traces
from launcher.asking import BUSY, ask_controller
from launcher.errors import HostfileError, LauncherError, UsageError
from launcher.follow import Follower
from launcher.nodeset import expand_ranks, fold_numbers
from launcher.rundir import RunDir

LOOK_S = 0.3
MOST_RANKS = 64  # more than these nobody looks at in one picture
DEFAULT_RANKS = 8


def chosen(text: str | None, count: int) -> tuple[int, ...]:
    """The ranks that a set names, of a run of so many; the first ones without a set. Raises UsageError."""
    if text is None:
        return tuple(range(min(count, DEFAULT_RANKS)))
    try:
        ranks = tuple(sorted(set(expand_ranks(text))))
    except HostfileError as error:
        raise UsageError(f"--rank {text}: {error}") from None
    beyond = [rank for rank in ranks if rank >= count]
    if beyond or not ranks:
        raise UsageError(f"--rank {text}: the run has ranks 0 to {count - 1}")
    if len(ranks) > MOST_RANKS:
        raise UsageError(f"--rank {text} names {len(ranks)} ranks; at most {MOST_RANKS} fit into one trace")
    return ranks


def profile_run(run: RunDir, steps: int, rank: str | None) -> list[str]:
    """Ask, wait for all traces, merge them; returns the summary and where the traces are.

    Raises UsageError: there is nobody to ask, or no such rank. LauncherError: the run ended before.
    """
    follower = Follower(run)
    follower.news()
    seen = follower.seen()
    if seen.over:
        raise UsageError(f"run {seen.state.run_id} is over ({seen.name}): there is nothing to trace")
    ranks = chosen(rank, len(seen.state.ranks))
    answer = ask_controller(seen.state, "profile", ranks=list(ranks), steps=steps)
    if BUSY in answer:
        raise LauncherError("the controller is too busy to answer; try again")
    paths = {rank: run.trace(answer["id"], rank) for rank in ranks}
    _wait(follower, paths, seen.state.attempt)
    hosts = {rank: seen.state.ranks[rank].host for rank in ranks}
    found = {rank: read(path) for rank, path in paths.items()}
    whole = paths[ranks[0]].with_name("trace.json.gz")
    with gzip.open(whole, "wt", encoding="utf-8", compresslevel=3) as file:
        json.dump(traces.merged(found, hosts), file)
    shares = [traces.share_of(rank, trace.get("traceEvents", [])) for rank, trace in found.items()]
    told = traces.summary([share for share in shares if share is not None], hosts)
    return [*told, f"trace: {whole}", "  (open it at ui.perfetto.dev or chrome://tracing)"]


def _wait(follower: Follower, paths: dict[int, Path], attempt: int) -> None:
    while not all(path.exists() for path in paths.values()):
        follower.news()
        seen = follower.seen()
        if seen.over or seen.state.attempt != attempt or seen.state.failure is not None:
            missing = fold_numbers([rank for rank, path in paths.items() if not path.exists()])
            raise LauncherError(f"run {seen.state.run_id} is {seen.name}: no trace of ranks {missing}")
        time.sleep(LOOK_S)


def read(path: Path) -> dict[str, Any]:
    """A rank's trace. Raises LauncherError where it is none."""
    try:
        with gzip.open(path, "rt", encoding="utf-8", errors="replace") as file:
            value = json.load(file)
    except (OSError, EOFError, zlib.error, ValueError) as error:
        raise LauncherError(f"{path} is no trace: {error}") from None
    if not isinstance(value, dict):
        raise LauncherError(f"{path} is no trace: a JSON object is wanted")
    return value
