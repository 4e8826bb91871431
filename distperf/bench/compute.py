"""Arithmetic and memory of one rank: plain products, a layer as it trains, a loss, an optimizer's update."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from distperf.bench.timing import typical
from distperf.model.llama import Block
from distperf.model.loss import loss_sum
from distperf.optim.adamw import Moments, Update
from distperf.optim.groups import Treatment
from distperf.recipe.runspec import ModelSpec, OptimizerSpec, ScheduleSpec
from distperf.recipe.stages import model_costs

Found = list[dict[str, Any]]
Case = Callable[[], Found]

HEAD_SIZE = 64
LOGITS = (512, 8192)
UPDATED = 1 << 22  # elements: 28 bytes of each pass through memory, far more than any cache
COPIED_BYTES = 1 << 26
ENOUGH_S = 1.5  # what would take longer is not tried: its rate is that of the size before
OPTIMIZER = OptimizerSpec("adamw", 1e-4, (0.9, 0.95), 1e-8, 0.1, ScheduleSpec("constant", 0, 0, 0.0), ())


def cases(device: torch.device) -> Iterator[Case]:
    """Each measures one thing in all its sizes; nothing is sent."""
    on_cpu = device.type == "cpu"
    names = ("fp32", "bf16") if on_cpu else ("fp32", "bf16", "fp16")
    sizes = (128, 256, 512, 1024) if on_cpu else (1024, 2048, 4096, 8192)
    rows = (2, 256) if on_cpu else (2, 2048)
    for name in names:
        dtype = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[name]
        yield partial(_growing, "matmul", name, sizes, partial(_matmul, dtype=dtype, device=device))
        yield partial(_growing, "layer", name, sizes, partial(_layer, rows=rows, dtype=dtype, device=device))
        yield partial(_one, "loss", name, partial(_loss, dtype, device))
    yield partial(_one, "copy", "", partial(_copy, device))
    yield partial(_one, "update", "", partial(_update, device))


def _one(what: str, where: str, measure: Callable[[], float]) -> Found:
    return [{"what": what, "where": where, "amount": 1, "value": measure()}]


def _growing(
    what: str, where: str, sizes: tuple[int, ...], measure: Callable[[int], tuple[float, float]]
) -> Found:
    """Rates by size, as long as the next one, of four times the work or more, would not take too long."""
    found: Found = []
    for size in sizes:
        work, seconds = measure(size)
        found.append({"what": what, "where": where, "amount": size, "value": work / seconds})
        if 4 * seconds > ENOUGH_S:
            break
    return found


def _matmul(size: int, dtype: torch.dtype, device: torch.device) -> tuple[float, float]:
    """FLOP and seconds of a product of square matrices."""
    left, right = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    return 2.0 * size**3, typical(lambda: left @ right, device)


def _layer(
    hidden: int, rows: tuple[int, int], dtype: torch.dtype, device: torch.device
) -> tuple[float, float]:
    """FLOP and seconds of a layer forward and backward; rows: sequences, and positions of each."""
    heads = hidden // HEAD_SIZE
    spec = ModelSpec("llama", layers=1, hidden=hidden, heads=heads, kv_heads=heads, ffn=8 * hidden // 3 // 64 * 64,
                     vocab=1, tied_embedding=True, rope_theta=1e4, norm_eps=1e-5, dropout=0.0)  # fmt: skip
    with device:
        block = Block(spec).to(dtype)
    for parameter in block.parameters():
        torch.nn.init.normal_(parameter, std=0.02)
    x = torch.randn(*rows, hidden, device=device).to(dtype).requires_grad_()
    gradient = torch.ones_like(x)

    def step() -> None:
        block.zero_grad(set_to_none=True)
        block(x).backward(gradient)

    flops = 3 * rows[0] * rows[1] * model_costs(spec, rows[1]).layers[0]
    return flops, typical(step, device)


def _loss(dtype: torch.dtype, device: torch.device) -> float:
    """Logits a second, forward and backward."""
    logits = torch.randn(LOGITS, device=device).to(dtype).requires_grad_()
    targets = torch.randint(LOGITS[1], LOGITS[:1], device=device)

    def step() -> None:
        logits.grad = None
        loss_sum(logits, targets).backward()  # type: ignore[no-untyped-call]  # torch's

    return LOGITS[0] * LOGITS[1] / typical(step, device)


def _copy(device: torch.device) -> float:
    """Bytes a second that are read and written."""
    source = torch.ones(COPIED_BYTES // 4, device=device)
    target = torch.empty_like(source)
    return 2 * COPIED_BYTES / typical(lambda: target.copy_(source), device)


def _update(device: torch.device) -> float:
    """Bytes a second that AdamW reads and writes: weights, moments and gradients, 28 for each element."""
    weights, grads = (torch.full((UPDATED,), 1e-3, device=device) for _ in range(2))
    moments = Moments.zeros_like(weights)

    def step() -> None:
        Update(OPTIMIZER, 1, 1e-4, 1.0).apply([weights], [grads], [moments], Treatment(1.0, 0.1))

    return 28 * UPDATED / typical(step, device)
