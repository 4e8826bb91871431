"""Learning rate over steps. Pure."""

from __future__ import annotations

import math

from distperf.recipe.runspec import ScheduleSpec


def lr_at(step: int, spec: ScheduleSpec, base_lr: float, steps: int) -> float:
    """Learning rate of `step` (from 1) in a run of `steps`.

    Warm-up rises linearly and reaches `base_lr` at step `warmup_steps`. Then `constant` stays; `cosine` and
    `linear` fall to `min_lr` over `decay_steps`; `wsd` (warm-up, stable, decay) stays until the last `decay_steps`
    steps and falls linearly there. Past the end the rate stays where it is.
    """
    if step <= spec.warmup_steps:
        return base_lr * step / spec.warmup_steps
    if spec.name == "constant":
        return base_lr
    decay_start = steps - spec.decay_steps if spec.name == "wsd" else spec.warmup_steps
    done = (step - decay_start) / spec.decay_steps if spec.decay_steps > 0 else 1.0
    left = 1.0 - min(1.0, max(0.0, done))
    if spec.name == "cosine":
        left = 0.5 * (1.0 - math.cos(math.pi * left))
    return spec.min_lr + (base_lr - spec.min_lr) * left
