"""Forward and backward passes through the stages of a pipeline, in the order of torch's schedules.

torch.distributed.pipelining carries the order out: it receives, computes and sends. Here it is told the shapes of
what travels, so that it sends no pickled objects to find them out; its stages hold what they received only while
that is wanted; and whatever waits for gradients or must know which micro-batch runs is told.

Shapes: B micro_batch, S positions of a sequence on this rank, D hidden. Legend: M micro-batches of a step.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import PipelineScheduleSingle, get_schedule_class
from torch.distributed.pipelining.stage import _RecvInfo

from distperf.errors import DistperfError
from distperf.model.loss import IGNORE
from distperf.recipe.stages import Stage

TORCH_NAMES = {
    "gpipe": "GPipe",
    "1f1b": "1F1B",
    "interleaved_1f1b": "Interleaved1F1B",
    "zero_bubble": "InterleavedZeroBubble",
    "zbv": "ZBVZeroBubble",
    "dualpipev": "DualPipeV",
}


@dataclass(frozen=True)
class Flow:
    """What goes through a pipeline, the same in every micro-batch."""

    tokens: tuple[int, int]  # (B, S) of inputs and of targets
    hidden: tuple[int, int, int]  # (B, S, D) from stage to stage; S is smaller with sequence parallel
    dtype: torch.dtype  # of the latter

    def into(self, place: Stage) -> Tensor:
        """An example, without memory, of a stage's input."""
        return (
            torch.empty(self.tokens, dtype=torch.int64, device="meta") if place.is_first else self._hidden()
        )

    def out_of(self, place: Stage) -> Tensor:
        """As `into`; nothing for the last stage, whose output is sent to nobody."""
        return torch.empty(0, device="meta") if place.is_last else self._hidden()

    def _hidden(self) -> Tensor:
        return torch.empty(self.hidden, dtype=self.dtype, device="meta", requires_grad=True)


class Collects(Protocol):
    """What a pipeline needs of an engine."""

    parts: Sequence[nn.Module]

    def collect(self) -> None:
        """Take the gradients that a stage's backward pass left in its parameters."""
        ...

    def finish(self) -> None:
        """Wait until this step's gradients are complete."""
        ...


class Batches(Protocol):
    """Where micro-batches come from; all ranks of a pipeline have the same."""

    def batch(self, step: int, micro: int) -> tuple[Tensor, Tensor]:
        """Tokens and targets (B, S) int64 on the CPU; targets may be IGNORE."""
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
        stages = [
            _Stage(part, place, flow, device, group, engine.collect, lambda m: on_micro(self._step, m))
            for part, place in zip(engine.parts, places, strict=True)
        ]
        kind = get_schedule_class(TORCH_NAMES[schedule])
        held = stages[0] if issubclass(kind, PipelineScheduleSingle) else stages
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
        inputs, targets = self._micro_batches(step)
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
        except RuntimeError as error:
            failed = error.__cause__ or error  # torch wraps what a stage raises into a dump of its tensors
        if failed is not None:
            raise failed

    def _loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The sum that a backward pass begins with."""
        loss = self._loss_sum(logits, targets)
        self._total += loss.detach()
        return loss if self._factor == 1.0 else loss * self._factor


class _Stage(PipelineStage):
    """torch's stage; it tells of its passes, and lets go of what it received once that was used.

    torch makes buffers for all M micro-batches and keeps them, and those of a neighbour on the same rank too, so that
    a schedule that holds few micro-batches at a time would save nothing.
    """

    def __init__(
        self,
        part: nn.Module,
        place: Stage,
        flow: Flow,
        device: torch.device,
        group: dist.ProcessGroup,
        collect: Callable[[], None],
        on_micro: Callable[[int], None],
    ) -> None:
        super().__init__(
            part,
            place.index,
            place.count,
            device,
            input_args=flow.into(place),
            output_args=flow.out_of(place),
            group=group,
        )
        self._flow, self._collect, self._on_micro = flow, collect, on_micro

    def forward_one_chunk(self, fwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        """Forward pass of a micro-batch."""
        self._on_micro(fwd_chunk_id)
        output = super().forward_one_chunk(fwd_chunk_id, *args, **kwargs)
        _let_go(
            self.args_recv_info[fwd_chunk_id]
        )  # the input itself is kept with what the backward pass needs
        return output

    def backward_one_chunk(
        self, bwd_chunk_id: int, loss: Any = None, full_backward: bool = True, last_backward: bool = False
    ) -> None:
        """Backward pass of a micro-batch, or its half for inputs."""
        super().backward_one_chunk(bwd_chunk_id, loss, full_backward, last_backward)
        _let_go(self.grad_recv_info[bwd_chunk_id])
        if full_backward:
            self._collect()

    def backward_weight_one_chunk(self, bwd_chunk_id: int, last_backward: bool = False) -> None:
        """The half of a backward pass for weights."""
        super().backward_weight_one_chunk(bwd_chunk_id, last_backward)
        self._collect()

    def get_fwd_recv_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        """Receive the input of a micro-batch."""
        self._make_room(self.args_recv_info[fwd_chunk_id])
        return super().get_fwd_recv_ops(fwd_chunk_id)

    def get_bwd_recv_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        """Receive the gradient of a micro-batch's output."""
        if self.has_backward:
            self._make_room(self.grad_recv_info[bwd_chunk_id])
        return super().get_bwd_recv_ops(bwd_chunk_id)

    def _make_room(self, infos: Sequence[_RecvInfo]) -> None:
        for info in infos:
            if not info.is_root_arg:
                info.buffer = torch.empty(self._flow.hidden, dtype=self._flow.dtype, device=self.device)

    def _setup_forward_recv_info(self, num_microbatches: int, has_backward: bool) -> None:
        super()._setup_forward_recv_info(num_microbatches, has_backward)
        for infos in self.args_recv_info.values():
            _let_go(infos)

    def _create_grad_recv_info(self, act_send_info: dict[int, Any]) -> tuple[_RecvInfo, ...]:
        infos = super()._create_grad_recv_info(act_send_info)
        _let_go(infos)
        return infos


def _let_go(infos: Sequence[_RecvInfo]) -> None:
    for info in infos:
        info.buffer = None
