"""The section of a recipe that says what ranks run on, for the planner."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from distperf.recipe.kinds import choice, or_null
from distperf.recipe.planner.hardware import CPU, DEVICES
from distperf.recipe.sections import PositiveOrNull, Section


class HardwareSection(Section):
    """What the planner reckons with. What is not said comes from the nodes, from `distperf bench`, or a table.

    Rates are those of one rank, one way, as they are reached in practice; the table's are data sheets'.
    """

    device: Annotated[str | None, or_null(choice(*DEVICES, CPU))] = Field(
        default=None,
        description="The device of each rank: its memory and rates are then those of its data sheet. cpu: ranks "
        "without devices share the memory of their node.",
    )
    memory_gib: PositiveOrNull = Field(
        default=None,
        description="Memory of a device, or of a whole node with cpu, in GiB. Default: the device's, or the node's.",
    )
    flops_per_s: PositiveOrNull = Field(
        default=None,
        description="Floating-point operations per second that a rank reaches in large matrix products. Default: as "
        "`distperf bench` measured, else the data sheet's; of CPUs without either no step time is planned.",
    )
    link_bytes_per_s: PositiveOrNull = Field(
        default=None,
        description="Bytes per second between ranks of one host. Default: measured, or the data sheet's.",
    )
    network_bytes_per_s: PositiveOrNull = Field(
        default=None,
        description="Bytes per second of a rank to another host. Default: one adapter a device, as in the maker's "
        "reference design.",
    )
    drive_bytes_per_s: PositiveOrNull = Field(
        default=None,
        description="Bytes per second that a rank reads and writes on the drives of offload.path, both added, all "
        "ranks of a host at once. Default: as `distperf bench disk` measured.",
    )
