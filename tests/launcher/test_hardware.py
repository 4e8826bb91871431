import pytest

from distperf.recipe.machines import HardwareSection
from distperf.recipe.planner.hardware import CPU, DEVICES, GIB, UNKNOWN
from launcher.errors import UsageError
from launcher.hardware import assumed, of_nodes, said


def test_assumed_hosts():
    """Hosts, ranks and a device of the table, in any case; or memory alone; or nodes without devices."""
    text, found = assumed("64x8xh100", "bf16")
    assert text == "assumed[1-64] slots=8\n"
    assert (found.device, found.memory_bytes) == ("H100", DEVICES["H100"].memory_bytes)
    assert assumed("1x2x24GiB", "bf16")[1].memory_bytes == 24 * GIB
    assert assumed("2x4xcpu:64GiB", "fp32")[1].memory_bytes == 16 * GIB


@pytest.mark.parametrize("text", ["64xH100", "0x8xH100", "2x2xtoaster", "x", "2x2x"])
def test_what_cannot_be_assumed(text):
    """The form and the names are told."""
    with pytest.raises(UsageError, match="64x8xH100"):
        assumed(text, "bf16")


def test_the_poorest_node_counts():
    """Ranks of a CPU node share its memory; devices are looked up by the name that their driver gives."""
    nodes = {"a": {"devices": 0, "memory_bytes": 8 * GIB}, "b": {"devices": 0, "memory_bytes": 4 * GIB}}
    found = of_nodes(nodes, 2, "fp32", "found")
    assert (found.device, found.memory_bytes) == (CPU, 2 * GIB)
    gpu = {"a": {"devices": 8, "device_names": ["NVIDIA H100 80GB HBM3"], "memory_bytes": 4 * GIB}}
    assert of_nodes(gpu, 8, "bf16", "found").device == "H100"
    odd = {"a": {"devices": 1, "device_names": ["Unheard Of 9"], "memory_bytes": 4 * GIB}}
    assert of_nodes(odd, 1, "bf16", "found") == UNKNOWN


def test_the_recipe_has_the_last_word():
    """A device, its memory, single rates."""
    section = HardwareSection(device="A100", memory_gib=40.0, network_bytes_per_s=1e9)
    found = said(section, UNKNOWN, 8, "bf16")
    assert (found.device, found.memory_bytes, found.network_rate) == ("A100", 40 * GIB, 1e9)
    node = said(HardwareSection(device="cpu", memory_gib=64.0, flops_per_s=1e11), UNKNOWN, 4, "fp32")
    assert (node.memory_bytes, node.flops) == (16 * GIB, 1e11)
