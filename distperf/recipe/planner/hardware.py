"""What ranks run on, as the planner reckons with it: a table of devices, with sources, and what was given or found."""

from __future__ import annotations

from dataclasses import dataclass, replace

from distperf.recipe.planner.rates import Rates

GIB = 2**30
CPU = "cpu"


@dataclass(frozen=True)
class Device:
    """What a data sheet says of one device. Rates are per second; `link` and `network` are one way, a device."""

    memory_bytes: int
    bf16_flops: float  # dense matrix products
    fp32_flops: float  # as torch computes by default: without TF32
    memory_rate: float
    link_rate: float  # to devices of the same host
    network_rate: float  # to other hosts
    fp8_flops: float | None = None
    host_rate: float = 32e9  # to and from the host's memory


# NVIDIA's data sheets: memory in units of 10^9 bytes, dense FLOP/s (half of the figures "with sparsity"), half of
# NVLink's "bidirectional" rate, or of PCIe's. Network: a 400 Gb/s adapter a device as in DGX H100 and later, 200 Gb/s
# as in DGX A100; for the others 100 Gb/s for a host of eight. To the host: 16 lanes of PCIe 4, or 5.
# A key is a part of the name that torch gives the device; the first that fits counts.
DEVICES = {
    "B200": Device(180 * 10**9, 2.25e15, 75e12, 8.0e12, 900e9, 50e9, 4.5e15, 64e9),
    "H200": Device(141 * 10**9, 989e12, 67e12, 4.8e12, 450e9, 50e9, 1.979e15, 64e9),
    "H100 PCIe": Device(80 * 10**9, 756e12, 51e12, 2.0e12, 64e9, 50e9, 1.513e15, 64e9),
    "H100 NVL": Device(94 * 10**9, 835e12, 60e12, 3.9e12, 300e9, 50e9, 1.671e15, 64e9),
    "H100": Device(80 * 10**9, 989e12, 67e12, 3.35e12, 450e9, 50e9, 1.979e15, 64e9),
    "A100-SXM4-40GB": Device(40 * 10**9, 312e12, 19.5e12, 1.555e12, 300e9, 25e9),
    "A100": Device(80 * 10**9, 312e12, 19.5e12, 2.039e12, 300e9, 25e9),
    "L40S": Device(48 * 10**9, 362e12, 91.6e12, 864e9, 32e9, 1.6e9, 733e12),
    "A10G": Device(24 * 10**9, 70e12, 35e12, 600e9, 32e9, 1.6e9),
    "L4": Device(24 * 10**9, 121e12, 30.3e12, 300e9, 32e9, 1.6e9, 242e12),
}


@dataclass(frozen=True)
class Hardware:
    """What one rank has. None: not known.

    `memory_bytes` is what this rank may fill: its device, or its share of the node's memory on a CPU. `flops`: of
    the data sheet, at the precision asked for. `host_rate`: bytes a second to the host's memory, one way;
    `drive_rate`: to and from its drives. `source` says where memory and device come from.
    """

    device: str | None
    memory_bytes: int | None
    source: str
    flops: float | None = None
    memory_rate: float | None = None
    link_rate: float | None = None
    network_rate: float | None = None
    host_rate: float | None = None
    drive_rate: float | None = None
    rates: Rates | None = None  # what was measured; before all of the above, but for what a recipe says

    @property
    def fused(self) -> bool:
        """Kernels are a GPU's. What is not known is reckoned as a CPU, which keeps more."""
        return self.device not in (None, CPU)


UNKNOWN = Hardware(None, None, "nothing is known of the hosts: name them with hardware, or --assume")


def device_key(name: str) -> str | None:
    """The entry of the table that a device's name means; None for one not known."""
    return next((part for part in DEVICES if part.lower() in name.lower()), None)


def of_device(name: str, precision: str, source: str) -> Hardware:
    """A device of the table."""
    device = DEVICES[name]
    return Hardware(
        name, device.memory_bytes, source, peak_flops(name, precision), device.memory_rate, device.link_rate,
        device.network_rate, device.host_rate,
    )  # fmt: skip


def peak_flops(name: str, precision: str) -> float | None:
    """Matrix FLOP/s of a device of the table."""
    device = DEVICES[name]
    if precision == "fp8":
        return device.fp8_flops
    return device.fp32_flops if precision == "fp32" else device.bf16_flops


def of_cpu(node_bytes: int, ranks: int, source: str) -> Hardware:
    """A node without devices, whose memory `ranks` ranks share."""
    return Hardware(CPU, node_bytes // ranks, source)


def overlaid(found: Hardware, **given: float | Rates | None) -> Hardware:
    """What is known, with what a recipe says in its place."""
    said = {key: value for key, value in given.items() if value is not None}
    return replace(found, **said) if said else found  # type: ignore[arg-type]  # fields by name
