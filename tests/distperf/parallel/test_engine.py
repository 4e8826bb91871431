"""ZeRO stages 0 to 3 on real ranks, against the plain loop in one process."""

from __future__ import annotations

import math

import pytest
import torch
import torch.distributed as dist
from ranks import run_ranks
from torch import Tensor, nn

from distperf.optim.clip import clip_factor, global_norm_sq
from distperf.parallel.engine import Engine, build_engine
from distperf.recipe.runspec import OptimizerSpec, ScheduleSpec

pytestmark = pytest.mark.slow

VOCAB, WIDTH, LENGTH, BATCH = 37, 12, 6, 8
LR, MAX_NORM = 1e-2, 0.5
SPEC = OptimizerSpec(
    name="adamw",
    lr=LR,
    betas=(0.9, 0.95),
    eps=1e-8,
    weight_decay=0.1,
    schedule=ScheduleSpec(name="constant", warmup_steps=0, decay_steps=0, min_lr=0.0),
)


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 3 * WIDTH + 1)
        self.down = nn.Linear(3 * WIDTH + 1, WIDTH)
        self.turned = nn.Parameter(torch.empty(WIDTH, 3).t())
        self.bias = nn.Parameter(torch.empty(3))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.down(torch.tanh(self.up(self.norm(x))))
        return x + (x @ self.turned.t() + self.bias) @ self.turned


class Net(nn.Module):
    """Tied head, a transposed parameter, biases of 3 elements, a frozen parameter, a non-persistent buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCAB, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(2))
        self.frozen = nn.Parameter(torch.empty(WIDTH), requires_grad=False)
        self.head = nn.Linear(WIDTH, VOCAB, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("phase", torch.empty(LENGTH, 1), persistent=False)

    def init_buffers(self, device: torch.device) -> None:
        self.phase = torch.linspace(0.1, 1.0, LENGTH, device=device).unsqueeze(1)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        x = x + (self.phase * 0.1).to(x.dtype) + self.frozen
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def make_net() -> Net:
    with torch.device("meta"):
        return Net()


def fill(fqn: str, shape, start: int, stop: int) -> Tensor:
    generator = torch.Generator().manual_seed(sum(map(ord, fqn)))
    return (torch.randn(math.prod(shape), generator=generator) * 0.2)[start:stop]


def batch(step: int) -> tuple[Tensor, Tensor]:
    tokens = torch.randint(VOCAB, (BATCH, LENGTH + 1), generator=torch.Generator().manual_seed(step))
    return tokens[:, :-1], tokens[:, 1:]


def loss_of(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    logits = model(inputs).float()
    total = nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")
    return total / (BATCH * LENGTH)


def plain_run(steps: int) -> tuple[list[float], list[float]]:
    """The same training without distperf's runtime."""
    model = make_net().to_empty(device="cpu")
    model.head.weight = model.embed.weight
    model.init_buffers(torch.device("cpu"))
    with torch.no_grad():
        for fqn, p in model.named_parameters():
            p.copy_(fill(fqn, p.shape, 0, p.numel()).view(p.shape))
    trained = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in trained if p.dim() >= 2], "weight_decay": SPEC.weight_decay},
        {"params": [p for p in trained if p.dim() < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=LR, betas=SPEC.betas, eps=SPEC.eps)
    losses, norms = [], []
    for step in range(steps):
        loss = loss_of(model, *batch(step))
        loss.backward()
        norms.append(float(nn.utils.clip_grad_norm_(trained, MAX_NORM)))
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, norms


def engine_for(
    zero: int, precision: str = "fp32", accumulation: int = 1, model: nn.Module | None = None
) -> Engine:
    return build_engine(
        model or make_net(),
        zero=zero,
        precision=precision,
        group=dist.group.WORLD if dist.is_initialized() else None,
        device=torch.device("cpu"),
        optimizer=SPEC,
        accumulation=accumulation,
        fill=fill,
    )


def train(engine: Engine, first: int, stop: int, accumulation: int) -> tuple[list[float], list[float]]:
    group = dist.group.WORLD if dist.is_initialized() else None
    rank, size = (dist.get_rank(), dist.get_world_size()) if group else (0, 1)
    losses, norms = [], []
    for step in range(first, stop):
        parts = [part.chunk(size)[rank].chunk(accumulation) for part in batch(step)]
        total = torch.zeros(())
        for index, (inputs, targets) in enumerate(zip(*parts, strict=True)):
            loss = loss_of(engine.model, inputs, targets)
            total += loss.detach()
            engine.backward(loss, last=index == accumulation - 1)
        engine.finish()
        norm_sq = global_norm_sq(engine.grad_norm_sq(), group)
        engine.step(LR, clip_factor(norm_sq, MAX_NORM))
        if group:
            dist.all_reduce(total)
        losses.append(float(total))
        norms.append(float(norm_sq.sqrt()))
    return losses, norms


def run_stages(precision: str, accumulation: int, steps: int):
    return {
        zero: train(engine_for(zero, precision, accumulation), 0, steps, accumulation) for zero in range(4)
    }


@pytest.mark.parametrize("world_size", [2, 4])
@pytest.mark.parametrize("accumulation", [1, 2])
def test_every_stage_trains_as_one_process_does(world_size, accumulation):
    """Losses and gradient norms of 20 fp32 steps equal the plain loop's within 1e-5, on every stage and rank."""
    losses, norms = plain_run(20)
    for result in run_ranks(run_stages, world_size, "fp32", accumulation, 20):
        for zero in range(4):
            assert result[zero][0] == pytest.approx(losses, rel=1e-5), f"losses, stage {zero}"
            assert result[zero][1] == pytest.approx(norms, rel=1e-5), f"norms, stage {zero}"
