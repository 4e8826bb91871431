"""Where the time of steps went, and what nodes and devices did, over a whole run. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from launcher import words
from launcher.figures import PARTS
from launcher.series import Line

# Figure -> what it is called, and how a value of it is written.
NODES = {
    "node_cpu": ("CPU in use", "{:.0%}"),
    "node_memory_bytes": ("memory in use", ""),
    "node_received_bytes_per_s": ("network in", "/s"),
    "node_sent_bytes_per_s": ("network out", "/s"),
    "node_read_bytes_per_s": ("drives, read", "/s"),
    "node_written_bytes_per_s": ("drives, written", "/s"),
    "device_busy": ("devices busy", "{:.0%}"),
    "device_memory_bytes": ("device memory", ""),
    "device_celsius": ("device heat", "{:.0f} C"),
    "device_watts": ("device power", "{:.0f} W"),
    "device_nvlink_sent_bytes_per_s": ("NVLink out", "/s"),
    "device_nvlink_received_bytes_per_s": ("NVLink in", "/s"),
}


def step_parts(usage: Sequence[Line]) -> list[tuple[str, float, float, str]]:
    """Part, its mean seconds (of the median rank), the most that a rank took, and which rank that was."""
    found = []
    for part in PARTS:
        known = [line for line in usage if isinstance(line.get(f"{part}_s"), (int, float))]
        if not known:
            continue
        worst = max(known, key=lambda line: float(line[f"{part}_s_most"]))
        mean = statistics.fmean(line[f"{part}_s"] for line in known)
        found.append((part, mean, float(worst[f"{part}_s_most"]), f"rank {worst[f'{part}_s_at']}"))
    return found


def step_rows(usage: Sequence[Line]) -> list[tuple[str, str, str, str]]:
    """The same as text: part, seconds, share of a step, and the worst."""
    parts = step_parts(usage)
    whole = sum(mean for _, mean, _, _ in parts) or 1.0
    return [
        (part, f"{mean:.4f} s", f"{mean / whole:.1%}", f"{most:.4f} s, {who}")
        for part, mean, most, who in parts
    ]


def node_rows(usage: Sequence[Line]) -> list[tuple[str, str, str]]:
    """Figure, its mean over the run (of the median node), and the most, with where that was."""
    rows = []
    for name, (label, form) in NODES.items():
        known = [line for line in usage if isinstance(line.get(name), (int, float))]
        if not known:
            continue
        worst = max(known, key=lambda line: float(line[f"{name}_most"]))
        mean = statistics.fmean(line[name] for line in known)
        most = f"{_written(form, float(worst[f'{name}_most']))} on {worst[f'{name}_at']}"
        rows.append((label, _written(form, mean), most))
    return rows


def _written(form: str, value: float) -> str:
    return form.format(value) if "{" in form else words.size(value) + form


def imbalance(usage: Sequence[Line]) -> str:
    """How unevenly work was divided along the pipeline; empty without one."""
    known = [line["stage_imbalance"] for line in usage if "stage_imbalance" in line]
    return f"the slowest stage took {statistics.fmean(known):.1%} more than the mean" if known else ""


def over_time(usage: Sequence[Line], name: str) -> list[tuple[float, float]]:
    """(seconds since the run was created, value of the median rank or node)."""
    return [
        (float(line["t"]), float(line[name]))
        for line in usage
        if isinstance(line.get("t"), (int, float)) and isinstance(line.get(name), (int, float))
    ]
