import json
import socket

import pytest

from launcher.agent.facts import count_devices, interface_of, interfaces, node_facts, ssh_address

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
