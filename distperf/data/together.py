"""The samples of a run, opened on every rank: prepared once a node, and the same everywhere."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from torch._C._distributed_c10d import Store

from distperf.data.store import SampleStore, open_store, open_validation
from distperf.errors import DataError
from distperf.process_group import Ranks, exchange
from distperf.recipe.runspec import DataSpec

# Tokenising a large corpus for the first time takes hours, and the other ranks wait for it.
DATA_TIMEOUT = timedelta(hours=24)


@dataclass(frozen=True)
class Samples:
    """What a run trains on, and what it is evaluated on, if anything."""

    training: SampleStore
    validation: SampleStore | None


def open_data(data: DataSpec, vocab: int, ranks: Ranks, store: Store) -> Samples:
    """Samples of the run. Each node's first rank prepares them, the others wait; then hashes are compared.

    Raises:
        DataError: on every rank when it failed on any node; or naming the ranks whose data differs.
    """
    problem = _prepare(data, vocab) if ranks.local_rank == 0 else ""
    _wait_for_nodes(store, ranks)
    problems = sorted(set(exchange(problem)) - {""})
    if problems:
        raise DataError("\n".join(problems))
    samples = _open(data, vocab)
    held = samples.validation
    _refuse_different(exchange(samples.training.content_hash + (held.content_hash if held else "")))
    return samples


def _open(data: DataSpec, vocab: int) -> Samples:
    return Samples(open_store(data, vocab), open_validation(data, vocab))


def _prepare(data: DataSpec, vocab: int) -> str:
    """Make the node's cache; returns what went wrong, for all ranks to hear."""
    try:
        _open(data, vocab)
    except DataError as error:
        return str(error)
    return ""


def _wait_for_nodes(store: Store, ranks: Ranks) -> None:
    """Until each node's first rank is here. A collective would give up before a large corpus is tokenised."""
    if ranks.local_rank == 0:
        store.set(f"distperf/data/{ranks.node_rank}", "tried")
    store.wait([f"distperf/data/{node}" for node in range(ranks.num_nodes)], DATA_TIMEOUT)


def _refuse_different(hashes: list[str]) -> None:
    odd = [rank for rank, found in enumerate(hashes) if found != hashes[0]]
    if odd:
        raise DataError(
            f"ranks have different data: rank 0 {hashes[0]}, rank {odd[0]} (and {len(odd) - 1} more) "
            f"{hashes[odd[0]]}. Give every node the same files, or name a folder that all of them see"
        )
