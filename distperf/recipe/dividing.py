"""The sections that say how a training is divided over ranks, and over tiers of memory."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from distperf.recipe.kinds import (
    choice,
    number,
    one_or_more,
    or_auto,
    or_null,
    text,
    whole,
    whole_list,
)
from distperf.recipe.sections import Auto, Count, Section


class ParallelSection(Section):
    """How the model's state is divided over ranks."""

    zero: Annotated[int, whole(0, 3)] = Field(
        default=2,
        description="ZeRO stage: 0 divides nothing, 1 optimizer state, 2 gradients too, 3 parameters too. The default "
        "saves most memory at no extra communication.",
    )
    dp_shard: Annotated[int | Auto, or_auto(whole(1))] = Field(
        default="auto",
        description="Ranks that state is divided by and that train on different samples. auto: what the other axes "
        "leave of the world.",
    )
    dp_replicate: Count = Field(
        default=1,
        description="Copies of what dp_shard ranks hold together (hybrid sharding: replicate over nodes).",
    )
    tp: Count = Field(
        default=1,
        description="Ranks that share every layer (tensor and sequence parallel). They communicate most: keep them "
        "inside a node. Divides heads, kv_heads, ffn and positions; a model of one's own declares a tensor_plan.",
    )
    cp: Count = Field(
        default=1,
        description="Ranks that share every sequence, each with a part of its positions (context parallel); state is "
        "divided over them as over dp_shard.",
    )
    cp_method: Annotated[str, choice("ulysses", "ring")] = Field(
        default="ulysses",
        description="How attention sees the other ranks' positions. ulysses: heads are exchanged for positions, so cp "
        "must divide them; ring: keys and values travel round, for any number of heads.",
    )
    pp: Count = Field(default=1, description="Pipeline stages: ranks that each hold some of the layers.")
    pp_schedule: Annotated[
        str, choice("gpipe", "1f1b", "interleaved_1f1b", "zero_bubble", "zbv", "dualpipev")
    ] = Field(
        default="1f1b",
        description="Order of a pipeline's forward and backward passes, train.micro_batch sequences each. The default "
        "holds few activations; the others shorten the bubble at the cost of memory or communication.",
    )
    pp_layers: Annotated[tuple[int, ...] | Auto, or_auto(whole_list(1))] = Field(
        default="auto",
        description="Layers of each pipeline stage in model order, as a list (two stages a rank with the last four "
        "schedules). auto: by cost, the head's included, so that the dearest stage is as cheap as can be.",
    )


class OffloadSection(Section):
    """What rests outside of the devices' memory, and where. Results are the same to the bit, if kernels are."""

    optimizer: Annotated[str, choice("none", "cpu", "nvme", "auto")] = Field(
        default="none",
        description="Where Adam's moments, and the fp32 weights beside bf16 or fp16 copies, are between updates. none: "
        "with the weights (the default, fastest); cpu: in host memory, where they are also updated; nvme: on drives, "
        "read and written back in pieces around the update, on the host. auto: none, unless "
        "nothing fits so by the plan; then cpu, where ranks have devices, or nvme, where path is given and nothing is "
        "kept by checkpoint.memory.",
    )
    optimizer_fraction: Annotated[float, number(above=0, most=1)] = Field(
        default=1.0,
        description="Share of that state that is offloaded; the rest stays with the weights. Default: all.",
    )
    params: Annotated[str, choice("none", "cpu", "nvme")] = Field(
        default="none",
        description="Where the weights that a rank owns, and their gradients, are while their layer does not compute; "
        "with parallel.zero: 3 and without a pipeline. none: on the device (the default); cpu: in host memory, beside "
        "optimizer: cpu or nvme; nvme: on drives, beside optimizer: nvme: a rank then holds a few layers at a time.",
    )
    path: Annotated[tuple[str, ...] | None, or_null(one_or_more(text("a path")))] = Field(
        default=None,
        description="For nvme (and auto): a folder on the drive, or a list of folders on several, over which state "
        "is spread; on every node, made beforehand, relative to launch.workdir. Ranks preallocate their files there.",
    )
