"""Which numbers of ranks can share a layer. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping


def indivisible(tp: int, units: Mapping[str, int]) -> str | None:
    """What keeps `tp` ranks from dividing each of `units` (name -> number), and what would do; None: nothing."""
    odd = [f"{name} ({number})" for name, number in units.items() if number % tp]
    if not odd:
        return None
    most = math.gcd(*units.values())
    fitting = [str(size) for size in range(1, most + 1) if most % size == 0]
    allowed = f"{', '.join(fitting[:-1])} or {fitting[-1]}" if len(fitting) > 1 else "only 1"
    return f"{tp} ranks cannot divide {', '.join(odd)} equally; it takes {allowed}"


def llama_units(
    *, heads: int, kv_heads: int, ffn: int, seq_len: int | None = None, pieces: int = 1
) -> dict[str, int]:
    """What tensor parallelism cannot cut in a Llama; `seq_len` is that of the data, cut in `pieces` before.

    The vocabulary is not among it: ranks may have unequally many rows.
    """
    units = {"model.heads": heads, "model.kv_heads": kv_heads, "model.ffn": ffn}
    if seq_len is not None:
        units["data.seq_len" if pieces == 1 else f"data.seq_len / {pieces}"] = seq_len // pieces
    return units
