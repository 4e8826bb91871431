"""Moving the weights of one state after the other by their gradients."""

from __future__ import annotations

import torch
from torch import Tensor

from distperf.offload.states import State
from distperf.optim.adamw import Moments, Update
from distperf.optim.groups import Treatment

# Weights that a core updates at a time in bf16: the cast gradient and the new working copy then stay in its cache.
UPDATE_BLOCK = 1 << 18


class Mover:
    """Carries out one update."""

    def __init__(self, update: Update) -> None:
        self._update = update
        self._block = UPDATE_BLOCK * torch.get_num_threads()
        self._cast = torch.empty(0)  # the longest block so far, on the host

    def move(self, state: State, grads: Tensor, working: Tensor | None, treatment: Treatment) -> None:
        """Update weights with `grads` (which may be scaled in place), and bring `working` up to date where it is."""
        master, moments = state.master, state.moments
        assert moments is not None, "it is trained"
        if working is None:
            self._update.apply([master], [grads.float()], [moments], treatment)
            return
        length = self._block if master.device.type == "cpu" else master.numel()
        for start in range(0, master.numel(), length):
            block = slice(start, start + length)
            part = Moments(moments.exp_avg[block], moments.exp_avg_sq[block])
            self._update.apply([master[block]], [self._fp32(grads[block])], [part], treatment)
            working[block] = master[block]

    def _fp32(self, grad: Tensor) -> Tensor:
        """A block of gradients; on the host always in the same memory, which is in cache by then."""
        if grad.dtype == torch.float32 or grad.device.type != "cpu":
            return grad.float()
        if grad.numel() > self._cast.numel():
            self._cast = torch.empty(grad.numel())
        return self._cast[: grad.numel()].copy_(grad)
