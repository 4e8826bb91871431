"""The rows that a rank owns of its block of a parameter under ZeRO stage 3, and how checkpoints see them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from distperf.offload.states import State
from distperf.parallel.buckets import ParameterInfo
from distperf.parallel.collectives import Peers
from distperf.parallel.materialize import local
from distperf.parallel.pieces import OwnedTensor, Piece, pieces_of


@dataclass(frozen=True, eq=False)
class Rows:
    """This rank's rows of its block of a parameter, from row `first` of the block on.

    `counts`: of equal copies on several ranks this is the one that is saved.
    """

    info: ParameterInfo
    parameter: nn.Parameter
    first: int
    counts: bool

    @classmethod
    def of(cls, info: ParameterInfo, parameter: nn.Parameter, shards: Peers, counts: bool) -> Rows:
        """Rows as fully_shard divides them, like torch.chunk: ceil(rows / N) for the first ranks, then what is left.

        A parameter without dims has no rows; all ranks have it, and the first one's counts.
        """
        if not info.local_shape:
            return cls(info, parameter, 0, counts and shards.rank == 0)
        length = -(-info.local_shape[0] // shards.size)
        return cls(info, parameter, min(length * shards.rank, info.local_shape[0]), counts)

    @property
    def weights(self) -> Tensor:
        """fp32 view."""
        return local(self.parameter.detach())

    @property
    def grad(self) -> Tensor:
        """fp32, summed over ranks; zeros where no rank used the parameter."""
        grad = self.parameter.grad
        return torch.zeros_like(self.weights) if grad is None else local(grad.detach())

    @property
    def start(self) -> int:
        """Place of the first element in the flattened block."""
        return self.first * math.prod(self.info.local_shape[1:])

    def owned(self, states: Sequence[State]) -> dict[str, OwnedTensor]:
        """Weights and moments, told as pieces of the whole, from the states of all spans of these rows."""
        found: dict[str, OwnedTensor] = {}
        for kind in states[0].kinds:
            pieces: tuple[Piece, ...] = ()
            for state in states:
                start = self.start + state.span.start
                pieces += pieces_of(state.kinds[kind], self.info.local_shape, start, self.info.offsets)
            found[f"{kind}.{self.info.fqn}"] = OwnedTensor(
                self.info.shape, torch.float32, pieces, self.counts
            )
        return found
