"""Torch's flight recorder, read out while a rank hangs: which collectives it waits in.

A blocked main thread has let go of the interpreter (gloo and NCCL wait without it), so a thread of ours can answer
(distperf.requests).

Gloo's sends and receives are not recorded (torch 2.13), and they carry the buckets of ZeRO stages 0 to 2: there the
stacks alone tell.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from torch._C._distributed_c10d import _dump_fr_trace_json  # type: ignore[attr-defined]  # not in the stubs

ENTRIES = "2000"  # what torch keeps; an entry is about a kilobyte
LAST = 20  # entries that an answer holds at most


def enlarge() -> None:
    """Have torch keep enough. To be called before the process group is made."""
    os.environ.setdefault("TORCH_FR_BUFFER_SIZE", ENTRIES)


def write_down(stack_file: str) -> None:
    """Which collectives this rank waits in, into the file beside that of its stacks. Raises OSError."""
    answer = Path(f"{stack_file}.collectives")
    unfinished = Path(f"{answer}.part")
    unfinished.write_text(json.dumps(waiting_in(_dump_fr_trace_json())))
    unfinished.replace(answer)


def waiting_in(trace: str | bytes) -> list[dict[str, Any]]:
    """{name, number, group} of the collectives that have not ended, oldest first, of a dump as JSON.

    `number` counts a group's collectives, so equal numbers are the same call on every rank.
    """
    entries = json.loads(trace).get("entries", [])
    open_ones = [e for e in entries if not (e.get("retired") or e.get("state") == "completed")]
    return [
        {
            "name": str(entry.get("profiling_name", "")).partition(":")[2]
            or str(entry.get("profiling_name")),
            "number": entry.get("p2p_seq_id") if entry.get("is_p2p") else entry.get("collective_seq_id"),
            "group": (entry.get("process_group") or ["", ""])[1],
        }
        for entry in open_ones[:LAST]
    ]
