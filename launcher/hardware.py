"""What a run's ranks run on, for the planner: assumed, said in the recipe, found on the nodes, or not known."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from distperf.recipe.machines import HardwareSection
from distperf.recipe.planner import hardware
from distperf.recipe.planner.hardware import CPU, DEVICES, GIB, UNKNOWN, Hardware
from distperf.recipe.planner.rates import Rates
from launcher.bench.kept import Kept, newest
from launcher.errors import UsageError

MEASURED = "measured"
_ASSUMED = re.compile(r"([1-9]\d{0,4})x([1-9]\d{0,3})x(.+)")
_MEMORY = re.compile(r"(cpu:)?(\d+(?:\.\d+)?)GiB")


def assumed(text: str, precision: str) -> tuple[str, Hardware]:
    """`64x8xH100` (hosts x ranks x device) as a hostfile's text, and what each rank then has. Raises UsageError."""
    match = _ASSUMED.fullmatch(text)
    if match is None:
        raise UsageError(f"--assume {text!r}: it takes HOSTSxRANKSxDEVICE, {_kinds()}")
    hosts, ranks, device = int(match[1]), int(match[2]), match[3]
    source, memory, key = f"--assume {text}", _MEMORY.fullmatch(device), hardware.device_key(device)
    if device == MEASURED:
        found = _as_measured(ranks, precision)
    elif memory is not None:
        size = int(float(memory[2]) * GIB)
        found = hardware.of_cpu(size, ranks, source) if memory[1] else Hardware("device", size, source)
    elif key is not None:
        found = hardware.of_device(key, precision, source)
    else:
        raise UsageError(f"--assume {text!r}: no device is called {device!r}; it takes {_kinds()}")
    return f"assumed[1-{hosts}] slots={ranks}\n", found


def _as_measured(ranks: int, precision: str) -> Hardware:
    """Hosts like those of the newest `distperf bench`. Raises UsageError."""
    measured = newest(ranks)
    if measured is None:
        raise UsageError(
            f"--assume: nothing was measured with {ranks} ranks a host: run `distperf bench` on one such host, or on "
            "two for what goes between them"
        )
    return with_measured(UNKNOWN, measured, precision)


def _kinds() -> str:
    names = ", ".join(DEVICES)
    return (
        f"such as 64x8xH100; devices: {names}, or a device's memory (24GiB), or a CPU node's (cpu:64GiB), or hosts "
        f"like those that `distperf bench` measured last ({MEASURED})"
    )


def of_nodes(facts: Mapping[str, Mapping[str, Any]], ranks: int, precision: str, source: str) -> Hardware:
    """What the poorest of the nodes has, by what their agents say; `ranks` share one."""
    found = [_of_node(fact, ranks, precision, source) for fact in facts.values()]
    return min(found, key=lambda each: each.memory_bytes or 0, default=UNKNOWN)


def with_measured(found: Hardware, measured: Kept, precision: str) -> Hardware:
    """With the rates that were measured; memory and devices as they were then, where nobody has looked since."""
    if found == UNKNOWN:
        found = of_nodes(measured.nodes, measured.ranks_per_host, precision, measured.source)
    return hardware.overlaid(found, rates=measured.rates)


def _of_node(fact: Mapping[str, Any], ranks: int, precision: str, source: str) -> Hardware:
    if fact["devices"]:
        names = fact.get("device_names") or [""]
        key = hardware.device_key(names[0])
        return UNKNOWN if key is None else hardware.of_device(key, precision, f"{source}: {names[0]}")
    if not fact.get("memory_bytes"):
        return UNKNOWN
    return hardware.of_cpu(int(fact["memory_bytes"]), ranks, source)


def said(section: HardwareSection, found: Hardware, ranks: int, precision: str) -> Hardware:
    """What the recipe says, in place of what was found."""
    device, memory = section.device, section.memory_gib
    size = None if memory is None else int(memory * GIB)
    if device == CPU:
        known = hardware.of_cpu(size, ranks, "the recipe") if size else found
    elif device is not None:
        known = hardware.overlaid(hardware.of_device(device, precision, "the recipe"), memory_bytes=size)
    else:
        known = found
    return hardware.overlaid(
        known,
        flops=section.flops_per_s,
        link_rate=section.link_bytes_per_s,
        network_rate=section.network_bytes_per_s,
        drive_rate=section.drive_bytes_per_s,
        rates=known.rates and _less_known(known.rates, section),
    )


def _less_known(rates: Rates, section: HardwareSection) -> Rates:
    return rates.without(
        compute=section.flops_per_s is not None,
        inside=section.link_bytes_per_s is not None,
        outside=section.network_bytes_per_s is not None,
    )
