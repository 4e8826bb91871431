"""Which positions of a sequence a tensor's rows are, where ranks divide a sequence among them.

A model computes on rows; what depends on where a row stands in the sequence (rotary angles, dropout) asks its
span. Whoever gives a rank only some rows sets it from outside, so models know of no ranks.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Span:
    """The rows are these pieces, in this order, of the sequence cut into `of` equal pieces."""

    pieces: tuple[int, ...] = (0,)
    of: int = 1

    def positions(self, rows: int, device: torch.device) -> Tensor:
        """Positions (rows,) int64 in the whole sequence, which has rows / len(pieces) * of of them."""
        piece = self.piece_length(rows)
        starts = torch.tensor(self.pieces, device=device) * piece
        return (starts[:, None] + torch.arange(piece, device=device)).flatten()

    def piece_length(self, rows: int) -> int:
        """Rows of each piece."""
        assert rows % len(self.pieces) == 0, (rows, self)
        return rows // len(self.pieces)

    def part(self, index: int, size: int) -> Span:
        """What the `index`th of `size` equal runs of these rows is: a further division, as by tensor parallel."""
        finer = [piece * size + part for piece in self.pieces for part in range(size)]
        count = len(self.pieces)
        return Span(tuple(finer[index * count : (index + 1) * count]), self.of * size)


WHOLE = Span()
