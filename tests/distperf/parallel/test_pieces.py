"""Flat intervals as rectangles."""

from __future__ import annotations

import math

import torch
from hypothesis import given
from hypothesis import strategies as st

from distperf.parallel.pieces import blocks, pieces_of


@st.composite
def intervals(draw):
    shape = tuple(draw(st.lists(st.integers(0, 5), max_size=4)))
    start, stop = sorted(draw(st.tuples(*[st.integers(0, math.prod(shape))] * 2)))
    return shape, start, stop


@given(intervals())
def test_blocks_tile_the_interval(case):
    """The rectangles hold exactly the interval's elements, in order and without overlap, and are few."""
    shape, start, stop = case
    numbers = torch.arange(math.prod(shape)).view(shape)
    found = blocks(shape, start, stop)
    assert len(found) <= max(1, 2 * len(shape) - 1)
    held = []
    for block in found:
        region = tuple(slice(o, o + s) for o, s in zip(block.offsets, block.sizes, strict=True))
        elements = numbers[region].flatten().tolist()
        assert elements[0] == block.flat_start
        assert len(elements) == block.numel
        held += elements
    assert held == list(range(start, stop))


@given(intervals())
def test_pieces_view_the_flat_tensor(case):
    """Writing through the pieces writes the flat tensor, each element at its place in the N-d tensor."""
    shape, start, stop = case
    whole = torch.arange(math.prod(shape)).view(shape)
    flat = torch.full((stop - start,), -1)
    for piece in pieces_of(flat, shape, start):
        region = tuple(slice(o, o + s) for o, s in zip(piece.offsets, piece.tensor.shape, strict=True))
        piece.tensor.copy_(whole[region])
    assert flat.tolist() == list(range(start, stop))
