"""Initial values: a pure function of (seed, parameter name, element), so that any piece can be made anywhere.

Every mesh, ZeRO stage and world size starts from the same weights, and no rank ever needs a whole parameter:
the values of a parameter come in blocks of BLOCK elements, each from a random stream of its own.

The streams are numpy's Philox (Salmon et al., SC'11), keyed by 128 bits of hash and counted by block. torch's
CPU generator would be three times as fast (297 against 99 M elements/s on one core), but it keeps 32 bits of
its seed, so that two blocks of a large model would coincide, and its values depend on the CPU's vector units.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from distperf.recipe.runspec import ModelSpec

BLOCK = 2**18
STD = 0.02

# (fqn, full shape, start, stop) -> fp32 values (stop - start,) of the flattened parameter
Fill = Callable[[str, Sequence[int], int, int], Tensor]


def fill_for(spec: ModelSpec, seed: int) -> Fill:
    """The initial values of one model as a function of parameter name, shape and interval."""

    def fill(fqn: str, shape: Sequence[int], start: int, stop: int) -> Tensor:
        return initial_values(seed, fqn, shape, start, stop, layers=spec.layers)

    return fill


def initial_values(
    seed: int, fqn: str, shape: Sequence[int], start: int, stop: int, *, layers: int
) -> Tensor:
    """Elements [start, stop) of the flattened parameter `fqn`, fp32 on the CPU.

    Norms (one dim) are ones. Matrices are normal with STD; the two projections that write into the residual
    stream are narrower by sqrt(2 * layers), so that its variance does not grow with depth (GPT-2, 2.3).
    """
    assert 0 <= start <= stop <= math.prod(shape), (fqn, tuple(shape), start, stop)
    if len(shape) == 1:
        return torch.ones(stop - start)
    writes_residual = fqn.endswith(("o_proj.weight", "down_proj.weight"))
    std = STD / (2 * layers) ** 0.5 if writes_residual else STD
    values = np.empty(stop - start, dtype=np.float32)
    key = _stream_key(seed, fqn)
    for block in range(start // BLOCK, -(-stop // BLOCK)):
        low, high = max(start, block * BLOCK), min(stop, (block + 1) * BLOCK)
        values[low - start : high - start] = _normals(key, block, high - block * BLOCK)[low - block * BLOCK :]
    return torch.from_numpy(values).mul_(std)


def _stream_key(seed: int, fqn: str) -> int:
    digest = hashlib.blake2b(f"{seed}/{fqn}".encode(), digest_size=16).digest()
    return int.from_bytes(digest, "little")


def _normals(key: int, block: int, count: int) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    """The first `count` values of a block: a prefix is the same however much of the block is asked for."""
    stream = np.random.Philox(key=key, counter=np.array([0, 0, 0, block], dtype=np.uint64))
    return np.random.Generator(stream).standard_normal(count, dtype=np.float32)
