import json
import socket

import pytest

from launcher.agent.facts import (
    count_devices,
    device_names,
    interface_of,
    interfaces,
    memory_bytes,
    node_facts,
    ssh_address,
)

DEV = ["null", "nvidia0", "nvidia1", "nvidia10", "nvidiactl", "nvidia-uvm"]


@pytest.mark.parametrize(
    ("mask", "dev", "count"),
    [
        (None, DEV, 3),
        ("1", DEV, 1),
        ("0,1", DEV, 2),
        ("", DEV, 0),
        ("-1", DEV, 0),
        ("0,1", ["null"], 0),
        (None, [], 0),
    ],
)
def test_count_devices(mask, dev, count):
    """Device files, as far as the node's own mask shows them."""
    assert count_devices({} if mask is None else {"CUDA_VISIBLE_DEVICES": mask}, dev) == count


def test_devices_of_a_task_of_slurms():
    """SLURM's own word stands above device files, which show those of other jobs too."""
    assert count_devices({"SLURM_GPUS_ON_NODE": "2", "CUDA_VISIBLE_DEVICES": "4,5"}, ["nvidia4"]) == 2


def test_device_names(tmp_path):
    """As NVIDIA's driver tells them, in order; none without the driver."""
    for number, name in enumerate(["NVIDIA H100 80GB HBM3", "NVIDIA A10G"]):
        (tmp_path / f"0000:0{number}").mkdir()
        (tmp_path / f"0000:0{number}" / "information").write_text(f"Model: \t\t {name}\nIRQ: 1\n")
    assert device_names(str(tmp_path)) == ["NVIDIA H100 80GB HBM3", "NVIDIA A10G"]
    assert device_names(str(tmp_path / "nothing")) == []


def test_memory_is_at_most_the_machines():
    """What the kernel counts, or a cgroup's limit below it."""
    with open("/proc/meminfo") as file:
        total = 1024 * int(file.readline().split()[1])
    assert 0 < memory_bytes() <= total


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("192.0.2.1 5000 192.0.2.7 22", "192.0.2.7"),
        ("fe80::1%eth0 5000 fe80::2%eth0 22", "fe80::2"),
        ("", None),
        ("x", None),
    ],
)
def test_ssh_address(text, address):
    """B21: the address that we were reached by, without asking `hostname`."""
    assert ssh_address(text) == address


def test_interfaces():
    """Loopback is there under its address; an address that is nobody's has no interface."""
    assert "127.0.0.1" in interfaces()["lo"]
    assert interface_of("127.0.0.1") == "lo"
    assert interface_of("192.0.2.99") is None


def test_facts_are_json():
    """All of it travels in the first message."""
    facts = node_facts()
    assert json.loads(json.dumps(facts)) == facts
    assert facts["hostname"] == socket.gethostname()
    assert facts["cpus"] >= 1
