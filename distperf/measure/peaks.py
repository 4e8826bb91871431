"""What known devices can do at most, to say what share of it a run gets."""

from __future__ import annotations

from distperf.recipe.planner.hardware import DEVICES, device_key


def peak_flops_per_s(device_name: str, precision: str) -> float | None:
    """Peak of one device; None for one not known, and for other precisions than bf16."""
    key = device_key(device_name)
    return None if precision != "bf16" or key is None else DEVICES[key].bf16_flops
