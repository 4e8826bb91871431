"""Micro-batches through the stages of a pipeline, forward only.

Shapes: B micro-batch, S positions of a sequence on this rank, D hidden.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from distperf.parallel.stage import Flow
from distperf.recipe.stages import Stage


class ForwardPipeline:
    """This rank's stages, `places[i]` being that of `parts[i]`; `owners`: which rank of the group has each stage.

    A micro-batch goes through all stages of a rank before the next: where ranks have one stage each they all work at
    once, and where they have several they take turns, which keeps sends and receives of two ranks in one order.
    """

    def __init__(
        self,
        parts: Sequence[nn.Module],
        places: Sequence[Stage],
        owners: Mapping[int, int],
        flow: Flow,
        group: dist.ProcessGroup,
        device: torch.device,
    ) -> None:
        self._stages = sorted(zip(places, parts, strict=True), key=lambda stage: stage[0].index)
        self._owners, self._flow, self._group, self._device = owners, flow, group, device
        self._sent: list[tuple[dist.Work, Tensor]] = []  # on its way; the tensor must stay until it has left

    def __call__(self, tokens: Tensor) -> Tensor | None:
        """Tokens (B, S) int64 to logits, on the rank of the last stage; None on the others. Without gradients.

        Cost: sends B * S * D elements to each next stage on another rank; peak extra twice as much.
        """
        stream = tokens
        for place, part in self._stages:
            if not place.is_first and self._owners[place.index - 1] != self._group.rank():
                stream = self._receive(self._owners[place.index - 1])
            stream = part(stream)
            if place.is_last:
                self.settle()
                logits: Tensor = stream
                return logits
            if self._owners[place.index + 1] != self._group.rank():
                self._send(stream, self._owners[place.index + 1])
        return None

    def _receive(self, source: int) -> Tensor:
        stream = torch.empty(self._flow.hidden, dtype=self._flow.dtype, device=self._device)
        dist.recv(stream, group=self._group, group_src=source)
        return stream

    def _send(self, stream: Tensor, target: int) -> None:
        self.settle()
        work = dist.isend(stream.contiguous(), group=self._group, group_dst=target)
        assert work is not None, "this rank is one of the group"
        self._sent.append((work, stream))

    def settle(self) -> None:
        """Wait until what was sent has left."""
        while self._sent:
            self._sent.pop()[0].wait()


def owners_of(held: Callable[[int], Sequence[Stage]], ranks: int) -> dict[int, int]:
    """Stage -> rank of the pipeline, of what each of its ranks holds. Pure."""
    return {stage.index: rank for rank in range(ranks) for stage in held(rank)}
