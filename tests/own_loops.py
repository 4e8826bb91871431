"""A loop of a user's own, by hand and with distperf.initialize, on the same samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from own_models import Net, build
from torch import Tensor, nn

import distperf
from distperf.driven import Driven

VOCAB, LENGTH, MICRO, LR, CLIP = 37, 6, 2, 1e-2, 0.5


def model(seed: int = 1) -> Net:
    """Tied, with dropout that is off, and a layer that is not trained."""
    torch.manual_seed(seed)
    made = build(VOCAB)
    made.blocks[0][1].bias.requires_grad_(False)
    return made


def optimizer(made: nn.Module) -> torch.optim.AdamW:
    """Two groups: another rate and no decay for vectors."""
    trained = [p for p in made.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in trained if p.dim() > 1], "weight_decay": 0.1},
        {"params": [p for p in trained if p.dim() < 2], "lr": LR / 4, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=LR, betas=(0.9, 0.95))


def batch(step: int, micro: int, rank: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1000 * step + 10 * micro + rank)
    tokens = torch.randint(VOCAB, (MICRO, LENGTH + 1), generator=generator)
    return tokens[:, :-1], tokens[:, 1:]


def loss_of(logits: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(logits.float().flatten(0, 1), targets.flatten())


@dataclass(frozen=True)
class Curve:
    losses: list[float]
    norms: list[float]


@dataclass(frozen=True)
class Found:
    """What loops came to on one rank."""

    stages: dict[tuple[int, int], Curve]  # by stage and accumulation, of ranks that are seeded apart
    short: list[Curve]  # by stage, of updates of two passes where the recipe says three
    offloaded: list[Curve]  # nowhere, in host memory, on a drive
    all_offloaded: list[Curve]  # with weights and gradients, at stage 3: nowhere, on a drive
    rates: list[float]  # as a scheduler of torch's sets them


def by_hand(steps: int, world: int, accumulation: int, clip: float | None = CLIP) -> Curve:
    """What DDP on `world` ranks does, in this process alone."""
    made = model()
    rule, curve = optimizer(made), Curve([], [])
    for step in range(steps):
        shares = [(micro, rank) for micro in range(accumulation) for rank in range(world)]
        total = 0.0
        for micro, rank in shares:
            inputs, targets = batch(step, micro, rank)
            loss = loss_of(made(inputs), targets) / len(shares)
            loss.backward()
            total += loss.item()
        curve.norms.append(float(nn.utils.clip_grad_norm_(made.parameters(), clip or 1e9)))
        curve.losses.append(total)
        rule.step()
        rule.zero_grad()
    return curve


def taken_over(recipe: dict[str, Any], seed: int = 1) -> tuple[Driven, torch.optim.AdamW]:
    made = model(seed)
    rule = optimizer(made)
    return distperf.initialize(made, rule, recipe), rule


def drive(engine: Driven, first: int, last: int, passes: int | None = None) -> Curve:
    """Steps first to last - 1, each of `passes` backward passes (default: as many as the recipe says)."""
    curve, rank = Curve([], []), dist.get_rank()
    for step in range(first, last):
        count = passes or engine.accumulation
        for micro in range(count):
            inputs, targets = batch(step, micro, rank)
            engine.backward(loss_of(engine(inputs), targets), last=micro == count - 1 if passes else None)
            result = engine.step()
            assert (result is None) == (micro < count - 1)
        curve.losses.append(result.loss)
        curve.norms.append(result.grad_norm)
    return curve


def recipe(zero: int, accumulation: int = 1, **more: Any) -> dict[str, Any]:
    train = {
        "global_batch": MICRO * accumulation * dist.get_world_size(),
        "micro_batch": MICRO,
        "grad_clip": CLIP,
    }
    return {"parallel": {"zero": zero}, "train": train, **more}
