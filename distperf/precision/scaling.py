"""Dynamic loss scaling for fp16: small gradients survive its narrow range, overflow is noticed and the step skipped.

The scale is a function of what the steps before did, the same on every rank: whether a step overflowed is read off
the global gradient norm, which all ranks have anyway. So no rank can skip alone, along whatever axis.

Source: Micikevicius et al., arXiv:1710.03740, section 3.2; constants as torch.amp.GradScaler's.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

START = 2.0**16
LEAST = 1.0
GROWTH_INTERVAL = 2000  # steps without overflow after which the scale is doubled
PATIENCE = 5  # overflows in a row at the least scale, after which it is not the scale's fault


@dataclass(frozen=True)
class LossScale:
    """What losses are multiplied by. `clean`: steps since a change; `stuck`: overflows in a row at the least scale."""

    scale: float = START
    clean: int = 0
    stuck: int = 0

    def after(self, overflowed: bool) -> LossScale:
        """The scale for the next step."""
        if overflowed:
            stuck = self.stuck + 1 if self.scale <= LEAST else 0
            return LossScale(max(LEAST, self.scale / 2), 0, stuck)
        if self.clean + 1 == GROWTH_INTERVAL:
            return LossScale(self.scale * 2, 0, 0)
        return dataclasses.replace(self, clean=self.clean + 1, stuck=0)

    @property
    def is_hopeless(self) -> bool:
        """A smaller scale would not help."""
        return self.stuck >= PATIENCE
