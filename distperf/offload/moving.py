"""Moving the weights of one state by their gradients."""

from __future__ import annotations

from torch import Tensor

from distperf.offload.states import State
from distperf.optim.adamw import Moments, Update
from distperf.optim.groups import Treatment

# Weights updated at a time in bf16: the cast gradient and the new working copy then stay in cache.
UPDATE_BLOCK = 1 << 18


def move(state: State, grads: Tensor, working: Tensor | None, update: Update, treatment: Treatment) -> None:
    """Update weights with `grads` (which may be scaled in place), and bring `working` up to date where there is one."""
    master, moments = state.master, state.moments
    assert moments is not None, "it is trained"
    if working is None:
        update.apply([master], [grads.float()], [moments], treatment)
        return
    length = UPDATE_BLOCK if master.device.type == "cpu" else master.numel()
    for start in range(0, master.numel(), length):
        block = slice(start, start + length)
        part = Moments(moments.exp_avg[block], moments.exp_avg_sq[block])
        update.apply([master[block]], [grads[block].float()], [part], treatment)
        working[block] = master[block]
