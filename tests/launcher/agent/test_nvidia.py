"""Devices and their links, as nvidia-smi tells of them."""

from __future__ import annotations

import os
import selectors

import pytest

from launcher.agent import nvidia
from launcher.agent.nvidia import Devices, Links, device_row, link_counters, link_rates

SMI = "0, 97, 70000, 81559, 64, 655.12, 0, 0x0000000000000040"
LINKS = """GPU 0: NVIDIA H800 (UUID: GPU-0)
\t Link 0: Data Tx: 1024 KiB
\t Link 0: Data Rx: 2048 KiB
\t Link 1: Data Tx: 1024 KiB
\t Link 1: Data Rx: 0 KiB
GPU 1: NVIDIA H800 (UUID: GPU-1)
\t Link 0: Data Tx: N/A
\t Link 0: Data Rx: N/A
"""


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


def turn(selector: selectors.BaseSelector, until) -> None:
    while not until():
        for key, _ in selector.select(10):
            key.data(key.fd)


def test_one_nvidia_smi_goes_on_telling(tmp_path, monkeypatch):
    """An older driver's, which refuses the newer name of a field, is asked with the older name."""
    smi(
        tmp_path,
        f'case "$1" in nvlink) exit 3;; *clocks_event*) echo no such field; exit 2;; esac\necho "{SMI}"\nexec sleep 60',
    )
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with selectors.DefaultSelector() as selector:
        devices = Devices(selector)
        devices.begin()
        try:
            turn(selector, devices.look)
            [row] = devices.look()
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
        turn(selector, lambda: not selector.get_map())
        assert devices.look() == []


def test_counters_of_links():
    """Bytes, summed over a device's links; one that does not tell is not there, nor is anything in other text."""
    assert link_counters(LINKS.splitlines()) == {0: (2 << 20, 2 << 20)}
    assert link_counters(["Link 0: Data Tx: 5 KiB", "NVML: Driver/library version mismatch"]) == {}


def test_rates_of_links():
    """Means over the time between; counters that went back, and devices that are new, say nothing."""
    assert link_rates({0: (100, 50), 1: (9, 9)}, {0: (300, 150), 1: (0, 9), 2: (5, 5)}, 2.0) == {
        0: {"nvlink_sent_bytes_per_s": 100, "nvlink_received_bytes_per_s": 50}
    }


def test_links_are_asked_again_and_again(tmp_path, monkeypatch):
    """The second answer gives rates; where the first tells of no link, there is no second."""
    smi(tmp_path, f"echo x >>{tmp_path}/asked\n[ -e {tmp_path}/none ] || cat <<'END'\n{LINKS}END")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with selectors.DefaultSelector() as selector:
        links = Links(selector)
        for now in (0.0, 1.0, nvidia.LINKS_EVERY_S):
            links.ask(now)
            turn(selector, lambda: not selector.get_map())
        assert links.rates == {0: {"nvlink_sent_bytes_per_s": 0, "nvlink_received_bytes_per_s": 0}}
        (tmp_path / "none").touch()
        for look in (2, 3, 4):
            links.ask(look * nvidia.LINKS_EVERY_S)
            turn(selector, lambda: not selector.get_map())
        assert links.rates == {}
    assert (tmp_path / "asked").read_text().count("x") == 3
