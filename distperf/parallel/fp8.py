"""Matrix products of a model's blocks in fp8, by torchao's float8 training.

Weights, gradients and optimizer state are as in bf16. A block's nn.Linear takes input and weight as e4m3, and the
gradient of its output as e5m2, each scaled by its largest element; products are added up in higher precision.
Embedding, head, norms and attention stay in bf16. Scales of activations are those of a micro-batch, so results
depend (in fp8's rounding) on its size.

Source: Micikevicius et al., arXiv:2209.05433.
"""

from __future__ import annotations

import importlib

import torch
from torch import nn

from distperf.errors import ModelError
from distperf.model.blocks import repeated_blocks

CAPABILITY = (8, 9)  # of the first NVIDIA devices with fp8 matrix units
MULTIPLE = 16  # what the units want both sizes of a matrix to be a multiple of


def refuse_without_units(device: torch.device) -> None:
    """Raise ModelError where a device has no fp8 matrix units."""
    if device.type != "cuda":
        found = f"this device ({device.type}) has no fp8 matrix units"
    elif torch.cuda.get_device_capability(device) < CAPABILITY:
        major, minor = torch.cuda.get_device_capability(device)
        name = torch.cuda.get_device_name(device)
        found = f"{name} has no fp8 matrix units (compute capability {major}.{minor}; they come with 8.9)"
    else:
        return
    raise ModelError(f"precision: fp8: {found}; set precision: bf16")


def apply_fp8(part: nn.Module, *, emulate: bool = False) -> None:
    """Let the linear layers of each block compute in fp8; parameters keep names and shapes.

    `emulate`: round as fp8 does, but multiply in higher precision: for devices without the units, and slow.

    Raises:
        ModelError: torchao is not installed, or no layer has sizes that fp8 units take.
    """
    try:
        float8 = importlib.import_module("torchao.float8")
    except ModuleNotFoundError as error:
        raise ModelError(
            f"precision: fp8 needs {error.name}, which is not installed; pip install 'distperf[fp8]' on every node"
        ) from error
    blocks = repeated_blocks(part)
    if not any(_fits(module, "") for block in blocks for module in block.modules()):
        raise ModelError(
            f"precision: fp8: no block of this model has an nn.Linear with sizes that are multiples of {MULTIPLE}; "
            "set precision: bf16"
        )
    config = float8.Float8LinearConfig(emulate=emulate)
    for block in blocks:
        float8.convert_to_float8_training(block, config=config, module_filter_fn=_fits)


def _fits(module: nn.Module, _name: str) -> bool:
    return isinstance(module, nn.Linear) and not (
        module.in_features % MULTIPLE or module.out_features % MULTIPLE
    )
