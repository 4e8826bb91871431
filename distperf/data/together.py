"""The samples of a run, opened on every rank: prepared once a node, and the same everywhere."""

from __future__ import annotations

from datetime import timedelta

from torch._C._distributed_c10d import Store

from distperf.data.opening import Samples, open_samples
from distperf.errors import DataError
from distperf.process_group import Ranks, exchange
from distperf.recipe.runspec import DataSpec

# Tokenising a large corpus for the first time takes hours, and the other ranks wait for it.
DATA_TIMEOUT = timedelta(hours=24)


def open_data(data: DataSpec, vocab: int, ranks: Ranks, store: Store) -> Samples:
    """Samples of the run. Each node's first rank prepares them, the others wait; then hashes are compared.

    Raises:
        DataError: on every rank when it failed on any node; or naming the ranks whose data differs.
    """
    samples, problem = _prepare(data, vocab) if ranks.local_rank == 0 else (None, "")
    _wait_for_nodes(store, ranks)
    problems = sorted(set(exchange(problem)) - {""})
    if problems:
        raise DataError("\n".join(problems))
    samples = samples or open_samples(data, vocab)
    held = samples.validation
    _refuse_different(exchange(samples.training.content_hash + (held.content_hash if held else "")))
    return samples


def _prepare(data: DataSpec, vocab: int) -> tuple[Samples | None, str]:
    """Make the node's cache: samples, or what went wrong, for all ranks to hear."""
    try:
        return open_samples(data, vocab), ""
    except DataError as error:
        return None, str(error)


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
