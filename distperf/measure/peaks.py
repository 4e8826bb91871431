"""What known devices can do at most, to say what share of it a run gets."""

from __future__ import annotations

# Dense bf16 matrix FLOP/s from NVIDIA's data sheets (half of the figures "with sparsity"). A key is a part of
# the name that torch gives the device; the first that fits counts.
_BF16_FLOPS_PER_S = {
    "B200": 2.25e15,
    "H200": 989e12,
    "H100 PCIe": 756e12,
    "H100 NVL": 835e12,
    "H100": 989e12,
    "A100": 312e12,
    "L40S": 362e12,
    "A10G": 70e12,
    "L4": 121e12,
}


def peak_flops_per_s(device_name: str, precision: str) -> float | None:
    """Peak of one device; None for one not known, and for other precisions than bf16."""
    if precision != "bf16":
        return None
    return next((peak for part, peak in _BF16_FLOPS_PER_S.items() if part in device_name), None)
