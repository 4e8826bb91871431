"""How a model says that its layers can be divided over ranks. A declaration: no process groups here.

Tensor parallelism divides the matrices of every layer over the ranks of the mesh axis tp. Between them runs the
residual stream, of which each rank holds its own positions (sequence parallelism), so that norms and additions
are divided too. A model names, for each module that has parameters, one of five styles:

    style      parameters         takes                  gives
    embedding  rows (vocabulary)  token ids, all         the stream: own positions
    norm       whole              the stream             all positions
    colwise    output features    all positions          own features of all positions
    rowwise    input features     own features           the stream, summed over ranks
    head       rows (vocabulary)  all positions          logits of own vocabulary

A decoder is then `embedding`, and for each half of a block `norm`, some `colwise`, some `rowwise`. What computes
between colwise and rowwise sees this rank's features only, as plain tensors, so attention counts heads by what
arrives: `q.unflatten(-1, (-1, head_size))`.

Source: Shoeybi et al., arXiv:1909.08053 (Megatron); Korthikanti et al., arXiv:2205.05198 (sequence parallelism).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Literal

Style = Literal["embedding", "norm", "colwise", "rowwise", "head"]


@dataclass(frozen=True)
class TensorPlan:
    """What `distperf.parallel.tensor.apply_tensor_parallel` goes by.

    `styles`: pattern of module names (of the whole model, `*` for any part) -> style; the first that matches counts.
    `units`: name -> number of what cannot be cut, such as heads; the number of ranks must divide each.
    `sequence`: false keeps the whole stream on every rank, for models that look at its length (to number positions,
    say); it costs as many bytes sent, but activations between blocks are not divided.
    """

    styles: Mapping[str, Style]
    units: Mapping[str, int] = field(default_factory=dict)
    sequence: bool = True

    def style_of(self, fqn: str) -> Style | None:
        """The style of the module with this name; None for one that is left as it is."""
        return next((style for pattern, style in self.styles.items() if fnmatchcase(fqn, pattern)), None)
