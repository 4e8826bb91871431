"""The batch equation: global_batch == micro_batch * accumulation * data-parallel size. Pure arithmetic."""

from __future__ import annotations

from dataclasses import dataclass

from distperf.errors import BatchError

MOST_AUTO_MICRO_BATCH = 8  # by rule of thumb, until the planner knows what fits into memory


@dataclass(frozen=True)
class Batch:
    """Sequences: of a step over all ranks, of one forward on one rank, and how many of those a step adds up."""

    global_batch: int
    micro_batch: int
    accumulation: int
    data_parallel_size: int


def fit_batch(
    global_batch: int, micro_batch: int | None, data_parallel_size: int, *, ranks_per_replica: int = 1
) -> Batch:
    """Fill in the equation; `micro_batch` None is the largest divisor of a rank's share of up to 8.

    `ranks_per_replica` ranks work on the same samples (pp * cp * tp); it only serves the advice on world sizes.

    Raises: BatchError with all numbers and the nearest ones that would do.
    """
    unit = data_parallel_size * (micro_batch or 1)
    if global_batch % unit:
        raise BatchError(_misfit(global_batch, micro_batch, data_parallel_size, ranks_per_replica))
    share = global_batch // data_parallel_size
    micro = micro_batch or max(n for n in range(1, min(share, MOST_AUTO_MICRO_BATCH) + 1) if share % n == 0)
    return Batch(global_batch, micro, share // micro, data_parallel_size)


def _misfit(global_batch: int, micro_batch: int | None, size: int, ranks_per_replica: int) -> str:
    unit = size * (micro_batch or 1)
    below = global_batch // unit * unit
    batches = ", ".join(str(batch) for batch in (below, below + unit) if batch)
    worlds = ", ".join(
        str(n * ranks_per_replica) for n in _nearest_sizes(global_batch // (micro_batch or 1), size)
    )
    micro = f" x micro_batch {micro_batch}" if micro_batch else ""
    text = f"global_batch {global_batch} is not a multiple of {unit} ({size} data-parallel ranks{micro})"
    if micro_batch and global_batch % micro_batch:
        return (
            f"{text}; nearest that fit: global_batch {batches}, or a micro_batch that divides {global_batch}"
        )
    return f"{text}; nearest that fit: global_batch {batches}, or a world size of {worlds}"


def _nearest_sizes(total: int, size: int) -> list[int]:
    """The divisors of `total` next to `size`, below and above."""
    below = next((n for n in range(min(size, total), 0, -1) if total % n == 0), None)
    above = next(
        (n for n in range(size, min(total, 4 * size) + 1) if total % n == 0), total if total > size else None
    )
    return [n for n in (below, above) if n is not None]
