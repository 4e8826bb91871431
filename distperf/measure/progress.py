"""What a rank tells while it trains: records for the agent, and calm plain lines on rank 0's output."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from distperf.contract import Reporter
from distperf.measure import stopwatch
from distperf.measure.memory import peak_rss_bytes
from distperf.requests import NOTHING, Asked

LINE_INTERVAL_S = 1.0


@dataclass(frozen=True)
class StepResult:
    """What one step did, the same on every rank. `tokens`: targets that counted, over all ranks.

    `loss_scale` is the step's, None without scaling; `skipped`: gradients overflowed and no weight changed.
    `asked`: how many ranks had been asked for what.
    """

    loss: float
    grad_norm: float
    lr: float
    tokens: int
    loss_scale: float | None = None
    skipped: bool = False
    asked: Asked = NOTHING


@dataclass(frozen=True)
class Evaluated:
    """What an evaluation found, the same on every rank. `tokens`: targets that counted, over all ranks."""

    loss: float
    tokens: int
    seconds: float


@dataclass(frozen=True)
class Workload:
    """What a step is made of. `peak_flops_per_s` is one device's; without it there is no MFU."""

    steps: int
    positions: int  # tokens that a step passes through the model, over all ranks
    flops_per_token: int | None  # None: nobody knows, so there is no MFU
    world_size: int
    peak_flops_per_s: float | None

    def mfu(self, step_s: float) -> float | None:
        """Share of the devices' peak arithmetic that the model's own arithmetic took."""
        if self.peak_flops_per_s is None or self.flops_per_token is None:
            return None
        return self.positions * self.flops_per_token / step_s / self.world_size / self.peak_flops_per_s


class Progress:
    """Reports steps. All ranks have one; rank 0's also sends metrics and prints."""

    def __init__(self, reporter: Reporter, rank: int, attempt: int, workload: Workload) -> None:
        self.tokens_seen = 0  # targets trained on; a resume sets it
        self.skipped_steps = 0  # since this attempt began, for an overflow in fp16
        self._reporter = reporter
        self._leads = rank == 0
        self._attempt = attempt
        self._workload = workload
        self._printed = float("-inf")

    def say(self, line: str) -> None:
        """Print a line on rank 0."""
        if self._leads:
            print(line, flush=True)

    def phase(self, name: str) -> None:
        """A part of the run begins: build, train, checkpoint."""
        self._reporter.send("phase", phase=name)

    def event(self, name: str, line: str, **fields: Any) -> None:
        """Something for the journal, and a line for people; from rank 0."""
        if self._leads:
            self._reporter.send("event", event=name, **fields)
            self.say(line)

    def memory(self, held: Mapping[str, int]) -> None:
        """Bytes this rank holds, as counted on live tensors."""
        self._reporter.send("memory", **held)

    def step(self, step: int, result: StepResult, step_s: float, evaluated: Evaluated | None = None) -> None:
        """A step is finished, and the evaluation after it, where there was one."""
        parts = stopwatch.lap()
        self._reporter.send("progress", step=step, **({"parts": parts} if parts else {}))
        self.tokens_seen += result.tokens
        self.skipped_steps += result.skipped
        if not self._leads:
            return
        tokens_per_s = result.tokens / step_s
        self._reporter.send(
            "metrics",
            step=step,
            loss=_finite(result.loss),
            lr=result.lr,
            grad_norm=_finite(result.grad_norm),
            tokens=result.tokens,
            tokens_seen=self.tokens_seen,
            tokens_per_s=tokens_per_s,
            step_s=step_s,
            peak_bytes=peak_bytes(),
            loss_scale=result.loss_scale,
            skipped_steps=self.skipped_steps,
            mfu=self._workload.mfu(step_s),
            attempt=self._attempt,
            **({} if evaluated is None else _told(evaluated)),
            **{f"{name}_s": seconds for name, seconds in parts.items()},
        )
        self._print_step(step, result, tokens_per_s)

    def _print_step(self, step: int, result: StepResult, tokens_per_s: float) -> None:
        now = time.monotonic()
        if now - self._printed < LINE_INTERVAL_S and step != self._workload.steps:
            return
        self._printed = now
        scaling = f"  skipped: fp16 overflow at loss scale {result.loss_scale:g}" if result.skipped else ""
        print(
            f"step {step}/{self._workload.steps}  loss {result.loss:.4f}  lr {result.lr:.3g}  "
            f"grad norm {result.grad_norm:.3g}  {tokens_per_s:,.0f} tokens/s{scaling}",
            flush=True,
        )


def metrics_of(result: StepResult, evaluated: Evaluated | None) -> dict[str, float]:
    """What checkpoints are compared by: the finite ones of a step's losses."""
    losses = {"loss": result.loss, **({} if evaluated is None else {"eval_loss": evaluated.loss})}
    return {name: value for name, value in losses.items() if math.isfinite(value)}


def _told(evaluated: Evaluated) -> dict[str, Any]:
    """What a line of metrics says of an evaluation."""
    return {
        "eval_loss": _finite(evaluated.loss),
        "eval_tokens": evaluated.tokens,
        "eval_s": evaluated.seconds,
    }


def _finite(value: float) -> float | None:
    """The value, or None: JSON has no infinity, and a step that is skipped for one goes on."""
    return value if math.isfinite(value) else None


def peak_bytes() -> int:
    """The most memory this rank held: of its GPU where it has one, else of its process."""
    return torch.cuda.max_memory_allocated() if torch.cuda.is_available() else peak_rss_bytes()
