"""Figures of ranks, nodes and devices in the words of Prometheus. Pure; see launcher.sinks.exposition."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from launcher import figures
from launcher.figures import PARTS, Numbers
from launcher.follow import Seen

Sample = tuple[Mapping[str, str], float]
Family = tuple[str, str, str, list[Sample]]  # name, type, help, samples

NODE = {
    "cpu": ("distperf_node_cpu_ratio", "Share of a node's CPU time that is busy."),
    "load": ("distperf_node_load", "Load average of a node over a minute."),
    "memory_bytes": ("distperf_node_memory_bytes", "Memory in use on a node."),
    "memory_total_bytes": ("distperf_node_memory_total_bytes", "Memory of a node."),
    "received_bytes_per_s": (
        "distperf_node_received_bytes_per_second",
        "What a node's network cards receive.",
    ),
    "sent_bytes_per_s": ("distperf_node_sent_bytes_per_second", "What a node's network cards send."),
    "read_bytes_per_s": ("distperf_node_read_bytes_per_second", "What is read from a node's drives."),
    "written_bytes_per_s": ("distperf_node_written_bytes_per_second", "What is written to a node's drives."),
}
DEVICE = {
    "busy": ("distperf_device_busy_ratio", "Share of time that a device computes."),
    "memory_bytes": ("distperf_device_memory_bytes", "Memory in use on a device."),
    "celsius": ("distperf_device_celsius", "Temperature of a device."),
    "watts": ("distperf_device_watts", "Power that a device takes."),
    "ecc_errors": (
        "distperf_device_uncorrected_errors",
        "Uncorrected memory errors since the driver started.",
    ),
    "nvlink_sent_bytes_per_s": (
        "distperf_device_nvlink_sent_bytes_per_second",
        "What a device sends over NVLink.",
    ),
    "nvlink_received_bytes_per_s": (
        "distperf_device_nvlink_received_bytes_per_second",
        "What a device receives over NVLink.",
    ),
    "throttled": ("distperf_device_slowed_down", "1 where heat, power or hardware slow a device down."),
}


def gauges(seen: Seen) -> list[Family]:
    """All families. Parts of steps are folded over ranks, since thousands of ranks have thousands of them."""
    return [*_of_steps(seen), *_of_nodes(seen), *_of_devices(seen)]


def _of_steps(seen: Seen) -> list[Family]:
    ranks, found = seen.state.ranks, seen.figures
    folded = figures.folded(found, ranks)
    parts: list[Sample] = [
        ({"part": part, "of": of}, float(folded[f"{part}_s{suffix}"]))
        for part in PARTS
        for of, suffix in (("least", "_least"), ("median", ""), ("most", "_most"))
        if f"{part}_s" in folded
    ]
    own: list[Sample] = [
        ({"rank": str(rank), "host": ranks[rank].host}, seconds)
        for rank, seconds in sorted(found.own_s().items())
        if rank < len(ranks)
    ]
    stages: list[Sample] = [
        ({"stage": str(stage)}, seconds) for stage, seconds in figures.stages_s(found, ranks).items()
    ]
    wait = figures.data_wait(found)
    return [
        ("distperf_step_part_seconds", "gauge", "Seconds of a step by part, over ranks.", parts),
        ("distperf_rank_own_seconds", "gauge", "Seconds of a step that a rank does not wait for others.", own),
        ("distperf_stage_seconds", "gauge", "Seconds of passes by place along the pipeline, median.", stages),
        ("distperf_data_wait_ratio", "gauge", "Largest share of a step that a rank waits for data.",
         [] if wait is None else [({}, wait[0])]),
    ]  # fmt: skip


def _of_nodes(seen: Seen) -> list[Family]:
    return [
        (name, "gauge", text, [({"host": host}, float(value)) for host, value in seen.figures.of_nodes(key).items()])
        for key, (name, text) in NODE.items()
    ]  # fmt: skip


def _of_devices(seen: Seen) -> list[Family]:
    asks: dict[str, Callable[[float], float]] = {
        "throttled": lambda bits: float(any(int(bits) & bit for bit in figures.THROTTLES))
    }
    families: list[Family] = []
    for key, (name, text) in DEVICE.items():
        samples: list[Sample] = [
            ({"host": host, "device": str(at)}, asks.get(key, float)(row[key]))
            for host, node in seen.figures.nodes.items()
            for at, row in enumerate(_devices(node))
            if key in row
        ]
        families.append((name, "gauge", text, samples))
    return families


def _devices(node: Numbers) -> list[Numbers]:
    return list(node.get("devices", ()))
