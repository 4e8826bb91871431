"""Which token comes next. Pure, but for the generators it is given.

Shapes: B samples, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Choice:
    """How tokens are chosen. Temperature 0: always the likeliest. `top_p`: among the likeliest of this much together.

    Source: Holtzman et al., arXiv:1904.09751 (top_p).
    """

    temperature: float = 1.0
    top_p: float = 1.0


def pick(logits: Tensor, choice: Choice, generators: Sequence[torch.Generator]) -> Tensor:
    """The next id of every sample, (B,) int64; logits (B, V).

    Every sample has a generator, so that none depends on the others.
    """
    if choice.temperature == 0:
        return logits.argmax(dim=-1)
    probabilities, ids = torch.softmax(logits.double() / choice.temperature, dim=-1).sort(descending=True)
    before = probabilities.cumsum(dim=-1) - probabilities
    kept = probabilities.masked_fill((before >= choice.top_p) & (before > 0), 0.0)
    drawn = torch.stack([torch.rand(1, generator=each, dtype=torch.float64) for each in generators])
    reached = kept.cumsum(dim=-1)
    at = torch.searchsorted(reached, drawn.to(reached) * reached[:, -1:], right=True)
    last = (kept > 0).sum(dim=-1, keepdim=True) - 1  # where rounding carried the draw to the very end
    return ids.gather(1, at.minimum(last)).squeeze(1)
