"""Forward and backward passes through the stages of a pipeline, in the order of torch's schedules.

torch.distributed.pipelining carries the order out: it receives, computes and sends (`distperf.parallel.stage`). The
orders themselves are told in `distperf.recipe.schedules`.

Shapes: B micro_batch, S positions of a sequence on this rank, D hidden. Legend: M micro-batches of a step.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining.schedules import PipelineScheduleSingle, get_schedule_class

from distperf.errors import DistperfError
from distperf.measure.stopwatch import COMMUNICATION, DATA, FORWARD
from distperf.model.loss import IGNORE
from distperf.parallel.stage import Flow, LoopedStage, PipelineStage
from distperf.passes import Batches
from distperf.recipe.stages import Stage

TORCH_NAMES = {
    "gpipe": "GPipe",
    "1f1b": "1F1B",
    "interleaved_1f1b": "Interleaved1F1B",
    "zero_bubble": "InterleavedZeroBubble",
    "zbv": "ZBVZeroBubble",
    "dualpipev": "DualPipeV",
}


class Collects(Protocol):
    """What a pipeline needs of an engine."""

    parts: Sequence[nn.Module]

    def collect(self) -> None:
        """Take the gradients that a stage's backward pass left in its parameters."""
        ...

    def finish(self) -> None:
        """Wait until this step's gradients are complete."""
        ...


class Pipelined:
    """A step's passes over this rank's stages, `places[i]` being that of `engine.parts[i]`."""

    def __init__(
        self,
        engine: Collects,
        places: Sequence[Stage],
        schedule: str,
        *,
        flow: Flow,
        batches: Batches,
        loss_sum: Callable[[Tensor, Tensor], Tensor],
        accumulation: int,
        group: dist.ProcessGroup,
        device: torch.device,
        on_micro: Callable[[int, int], None] = lambda step, micro: None,
    ) -> None:
        """`on_micro(step, micro)` is called before each forward pass of a stage."""
        # On an error torch prints the whole order of passes, on every rank.
        logging.getLogger("torch.distributed.pipelining.schedules").setLevel(logging.CRITICAL)
        self._engine, self._flow, self._batches = engine, flow, batches
        self._loss_sum, self._accumulation, self._device = loss_sum, accumulation, device
        self._has_first = any(place.is_first for place in places)
        self._has_last = any(place.is_last for place in places)
        self._step, self._factor = 0, 1.0
        self._total = torch.zeros((), dtype=torch.float64, device=device)
        kind = get_schedule_class(TORCH_NAMES[schedule])
        single = issubclass(kind, PipelineScheduleSingle)
        make = PipelineStage if single else LoopedStage
        self._stages = [
            make(part, place, flow, group, device, lambda micro: on_micro(self._step, micro), engine.collect)
            for part, place in zip(engine.parts, places, strict=True)
        ]
        held = self._stages[0] if single else self._stages
        self._schedule = kind(held, accumulation, loss_fn=self._loss, scale_grads=False)

    def run(self, step: int, factor: float) -> tuple[Tensor, Tensor]:
        """Sums of losses and of targets that counted, () float64 each; zeros but where the last stage is.

        Gradients of losses times `factor` are left in the engine, complete.

        Raises:
            DistperfError: a micro-batch has another shape than the pipeline was built for; on all ranks of the
                pipeline, before anything is sent.

        Cost: sends B * S * D elements for every micro-batch to each neighbouring stage on another rank, one way
        activations and the other their gradients; peak extra as many for each micro-batch in flight.
        """
        self._step, self._factor = step, factor
        self._total = torch.zeros_like(self._total)
        with DATA:
            inputs, targets = self._micro_batches(step)
        with COMMUNICATION:  # but for the passes of stages: what is left is waiting for other stages
            self._pass_through(inputs, targets)
            self._engine.finish()
        count = (targets != IGNORE).sum().to(self._total)
        return self._total, count if self._has_last else torch.zeros_like(count)

    def _micro_batches(self, step: int) -> tuple[Tensor, Tensor]:
        """Inputs and targets (M * B, S) of a step; every rank reads all, to refuse what it must with the others."""
        pairs = [self._batches.batch(step, micro) for micro in range(self._accumulation)]
        for micro, pair in enumerate(pairs):
            odd = next((t for t in pair if tuple(t.shape) != self._flow.tokens), None)
            if odd is not None:
                raise DistperfError(
                    f"step {step}, micro-batch {micro} has shape {tuple(odd.shape)}, but the pipeline was built for "
                    f"{self._flow.tokens} (micro_batch x positions) and its stages would wait for each other. Pad or "
                    "pack the samples to one length"
                )
        inputs, targets = (torch.cat(tensors) for tensors in zip(*pairs, strict=True))
        return inputs, targets.to(self._device, non_blocking=True)

    def _pass_through(self, inputs: Tensor, targets: Tensor) -> None:
        """All passes of a step, by torch's schedule, which cuts the batch into M."""
        args = (inputs.to(self._device, non_blocking=True),) if self._has_first else ()
        target = targets if self._has_last else None
        failed: BaseException | None = None
        try:
            self._schedule.step(*args, target=target, return_outputs=False)
            for stage in self._stages:
                stage.settle_all()
        except RuntimeError as error:
            failed = error.__cause__ or error  # torch wraps what a stage raises into a dump of its tensors
        if failed is not None:
            raise failed

    def _loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """What a backward pass begins with: a tensor of its own, which the stage cuts off its graph afterwards."""
        with FORWARD:
            loss = self._loss_sum(logits, targets)
            self._total += loss.detach()
            return loss * self._factor
