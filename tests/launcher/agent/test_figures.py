"""What nodes and ranks do, in numbers."""

from __future__ import annotations

import json
import os
import selectors

import pytest
from agents import LiveAgent

from launcher import protocol
from launcher.agent.figures import Devices, Node, StepTimes, device_row

SMI = "0, 97, 70000, 81559, 64, 655.12, 0, 0x0000000000000040"


def test_times_are_means_over_the_steps_since_they_were_told():
    """What is no number came from user code and is left out."""
    times = StepTimes()
    times.add(3, {"data": 0.1, "forward": 0.3, "odd": "x", "flag": True})
    times.add(3, {"data": 0.3})
    times.add(4, "nonsense")
    assert times.take() == {"3": {"steps": 2, "data": 0.2, "forward": 0.15}}
    assert times.take() == {}


def test_a_node_tells_shares_and_rates():
    """Of this machine: a busy share, memory in use, and no rate below zero."""
    node = Node()
    sum(range(2_000_000))
    found = node.look()
    assert 0 <= found["cpu"] <= 1
    assert 0 < found["memory_bytes"] < found["memory_total_bytes"]
    assert all(value >= 0 for value in found.values())


@pytest.mark.parametrize(
    ("line", "found"),
    [
        (SMI, {"index": 0, "busy": 0.97, "memory_bytes": 70000 << 20, "memory_total_bytes": 81559 << 20,
               "celsius": 64, "watts": 655.12, "ecc_errors": 0, "throttled": 0x40}),
        ("1, 5, 1, 2, 30, [N/A], [N/A], 0x0", {"index": 1, "busy": 0.05, "memory_bytes": 1 << 20,
                                               "memory_total_bytes": 2 << 20, "celsius": 30, "throttled": 0}),
        ("NVML: driver/library version mismatch", {}),
        ("", {}),
    ],
)  # fmt: skip
def test_lines_of_nvidia_smi(line, found):
    """Units as everywhere here; what a device does not tell is left out."""
    assert device_row(line) == found


def smi(folder, script: str) -> None:
    tool = folder / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\n{script}\n")
    tool.chmod(0o755)


def looked(devices: Devices, selector: selectors.BaseSelector, until) -> list[dict]:
    while not until():
        for key, _ in selector.select(10):
            key.data(key.fd)
    return devices.look()


def test_one_nvidia_smi_goes_on_telling(tmp_path, monkeypatch):
    """An older driver's, which refuses the newer name of a field, is asked with the older name."""
    smi(
        tmp_path,
        f'case "$1" in *clocks_event*) echo no such field; exit 2;; esac\necho "{SMI}"\nexec sleep 60',
    )
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with selectors.DefaultSelector() as selector:
        devices = Devices(selector)
        devices.begin()
        try:
            [row] = looked(devices, selector, devices.look)
            assert row["celsius"] == 64
        finally:
            devices.close()
        assert not selector.get_map()


@pytest.mark.parametrize("script", [None, "echo broken; exit 1"])
def test_a_node_without_devices_has_none(tmp_path, monkeypatch, script):
    """No nvidia-smi, or one that only fails: nothing is told, and it is not tried for ever."""
    if script:
        smi(tmp_path, script)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin" if script else str(tmp_path))
    with selectors.DefaultSelector() as selector:
        devices = Devices(selector)
        devices.begin()
        assert looked(devices, selector, lambda: not selector.get_map()) == []


@pytest.mark.slow
def test_an_agent_tells_at_the_end_of_an_attempt():
    """However short it was: parts of steps by rank, and the node's own."""
    record = json.dumps({"kind": "progress", "step": 1, "parts": {"forward": 0.25}}) + "\n"
    code = f"import os; os.write(int(os.environ['DISTPERF_REPORT_FD']), {record.encode()!r})"
    with LiveAgent() as agent:
        agent.start(code, code)
        agent.to_idle()
        [figures] = agent.got(protocol.Figures)
    assert figures.ranks == {str(rank): {"steps": 1, "forward": 0.25} for rank in (0, 1)}
    assert figures.node["memory_bytes"] > 0
