"""Which part of a tensor a rank owns: flat intervals of elements as rectangles of the N-d tensor. Pure.

A flat bucket gives a rank the elements [start, stop) of a flattened parameter. Checkpoints speak of
rectangles (offsets and sizes), so that any other layout can read them; `blocks` translates.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Block:
    """A rectangle of a tensor whose elements follow each other in row-major order, from `flat_start` on."""

    offsets: Shape
    sizes: Shape
    flat_start: int

    @property
    def numel(self) -> int:
        """How many elements."""
        return math.prod(self.sizes)


@dataclass(frozen=True)
class Piece:
    """A rectangle of a tensor: where it starts, and its live contents (a view; its shape is the sizes)."""

    offsets: Shape
    tensor: Tensor


@dataclass(frozen=True)
class OwnedTensor:
    """A tensor of the training state, and the pieces of it that this rank owns.

    Over all ranks that save, the pieces are the whole tensor, each element exactly once. Others hold copies, which
    are loaded likewise.
    """

    shape: Shape
    dtype: torch.dtype
    pieces: tuple[Piece, ...]
    saves: bool = True


def blocks(shape: Shape, start: int, stop: int) -> list[Block]:
    """Rectangles that tile elements [start, stop) of a row-major tensor, in order: at most 2 * dims - 1."""
    if start >= stop:
        return []
    if not shape:
        return [Block((), (), 0)]
    row = math.prod(shape[1:])
    first, last = -(-start // row), stop // row  # whole rows are [first, last)
    if first > last:  # inside one row
        return _inside_row(shape, last, start, stop)
    found = _inside_row(shape, first - 1, start, first * row)
    if first < last:
        found.append(Block((first, *(0 for _ in shape[1:])), (last - first, *shape[1:]), first * row))
    return found + _inside_row(shape, last, last * row, stop)


def _inside_row(shape: Shape, index: int, start: int, stop: int) -> list[Block]:
    base = index * math.prod(shape[1:])
    inner = blocks(shape[1:], start - base, stop - base)
    return [Block((index, *b.offsets), (1, *b.sizes), base + b.flat_start) for b in inner]


def pieces_of(flat: Tensor, shape: Shape, start: int, offsets: Shape = ()) -> tuple[Piece, ...]:
    """Pieces that view `flat`, which holds elements [start, start + len(flat)) of a block of this shape.

    `offsets`: where the block starts in the whole tensor.
    """
    found = blocks(shape, start, start + flat.numel())
    base = offsets or tuple(0 for _ in shape)
    return tuple(
        Piece(
            tuple(map(sum, zip(base, b.offsets, strict=True))),
            flat[b.flat_start - start :][: b.numel].view(b.sizes),
        )
        for b in found
    )
