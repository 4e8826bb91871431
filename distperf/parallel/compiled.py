"""Blocks compiled by torch.compile, each by itself: equal blocks share the compiled code."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sysconfig
from pathlib import Path

import torch
from torch import nn

from distperf.errors import DistperfError
from distperf.model.blocks import repeated_blocks


def compile_blocks(module: nn.Module, device: torch.device) -> None:
    """Compile the forward of each block at its first call. Comes last, before parameters are divided.

    Raises:
        DistperfError: compiled code cannot be built here, and what is missing for it.
    """
    missing = missing_tools(device)
    if missing:
        raise DistperfError(
            f"train.compile: torch.compile builds code for {device.type} and lacks {' and '.join(missing)} "
            "here. Install it, or set train.compile: false"
        )
    for block in repeated_blocks(module):
        block.forward = torch.compile(block.forward)


def missing_tools(device: torch.device) -> list[str]:
    """What torch.compile needs on this machine and does not find."""
    on_cpu = device.type == "cpu"
    compiler = os.environ.get("CXX", "g++") if on_cpu else os.environ.get("CC", "gcc")
    headers = Path(sysconfig.get_paths()["include"]) / "Python.h"
    found = {
        f"a C++ compiler ({compiler}; CXX names another)" if on_cpu else f"a C compiler ({compiler})": bool(
            shutil.which(compiler)
        ),
        f"Python's headers ({headers})": headers.exists(),
        "triton": on_cpu or importlib.util.find_spec("triton") is not None,
    }
    return [what for what, there in found.items() if not there]
