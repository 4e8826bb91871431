"""Which models context parallelism can divide. Pure."""

from __future__ import annotations

import math


def context_problem(
    method: str, cp: int, *, tp: int, heads: int, kv_heads: int, seq_len: int
) -> tuple[str, str] | None:
    """The key to change and why, where `cp` ranks cannot share sequences by `method`; None where they can."""
    if cp == 1:
        return None
    pieces = 2 * cp if method == "ring" else cp
    if seq_len % pieces:
        below = seq_len // pieces * pieces
        fitting = ", ".join(str(length) for length in (below, below + pieces) if length)
        what = f"{cp} ranks x 2 pieces (ring)" if method == "ring" else f"{cp} ranks"
        return "data.seq_len", f"data.seq_len is {seq_len}, not a multiple of {what}; nearest: {fitting}"
    if method == "ring":
        return None
    per_rank, rest = divmod(math.gcd(heads, kv_heads), tp)
    if rest == 0 and per_rank % cp:
        allowed = ", ".join(str(size) for size in range(1, per_rank + 1) if per_rank % size == 0)
        return "parallel.cp", (
            f"parallel.cp is {cp}; with cp_method ulysses it must divide a rank's heads, {heads // tp} of queries and "
            f"{kv_heads // tp} of keys and values: {allowed}. cp_method: ring takes any"
        )
    return None
