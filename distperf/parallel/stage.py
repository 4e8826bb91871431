"""A stage of a pipeline: torch's, told the shapes of what travels, that holds things only while they are wanted.

Shapes: B micro_batch, S positions of a sequence on this rank, D hidden. Legend: P ranks of the pipeline, M
micro-batches of a step.

Note [What torch keeps]: buffers to receive into for all M micro-batches, what stages of one rank hand each other,
losses and through their graphs the last stage's inputs, and, where a rank holds several stages, what was sent, all
until the step ends. A schedule that holds activations of few micro-batches at a time would save little. Here each is
let go of when it was used or has arrived.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import pipelining
from torch.distributed.pipelining.stage import _RecvInfo

from distperf.measure.stopwatch import BACKWARD, FORWARD
from distperf.recipe.stages import Stage


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


class PipelineStage(pipelining.PipelineStage):
    """torch's stage, which also tells of its passes: before a forward, after what may have left gradients."""

    def __init__(
        self,
        part: nn.Module,
        place: Stage,
        flow: Flow,
        group: dist.ProcessGroup,
        device: torch.device,
        on_micro: Callable[[int], None],
        collect: Callable[[], None],
    ) -> None:
        # With both shapes known, torch does not send pickled descriptions of tensors to find them out.
        super().__init__(
            part,
            place.index,
            place.count,
            device,
            input_args=flow.into(place),
            output_args=flow.out_of(place),
            group=group,
        )
        self._flow, self._on_micro, self._collect = flow, on_micro, collect

    def forward_one_chunk(self, fwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        """Forward pass of a micro-batch."""
        with FORWARD:
            self._on_micro(fwd_chunk_id)
            output = super().forward_one_chunk(fwd_chunk_id, *args, **kwargs)
        _let_go(self.args_recv_info[fwd_chunk_id])  # the input stays with what the backward pass needs
        return output

    def backward_one_chunk(
        self,
        bwd_chunk_id: int,
        loss: Tensor | None = None,
        full_backward: bool = True,
        last_backward: bool = False,
    ) -> None:
        """Backward pass of a micro-batch, or its half for inputs."""
        with BACKWARD:
            super().backward_one_chunk(bwd_chunk_id, loss, full_backward, last_backward)
        _let_go(self.grad_recv_info[bwd_chunk_id])
        if loss is not None:
            loss.detach_()
        if full_backward:
            self._collect()

    def backward_weight_one_chunk(self, bwd_chunk_id: int, last_backward: bool = False) -> None:
        """The half of a backward pass for weights."""
        with BACKWARD:
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

    def settle_all(self) -> None:
        """Wait until all that this stage has sent is on its way; torch has waited already."""

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


class LoopedStage(PipelineStage):
    """A stage of a rank that holds several. It sends by itself, and waits where that takes no time any more.

    An output has arrived when the gradient that it led to comes back. A gradient has arrived when the stage before has
    begun a forward pass that it could not hold beside that micro-batch: no schedule but GPipe holds more than 4 P.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._outputs: dict[int, list[dist.Work]] = {}  # by micro-batch
        self._gradients: dict[int, list[dist.Work]] = {}

    def get_fwd_send_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        """Send the output of a micro-batch at once; nothing is left for torch's runtime to send."""
        self._outputs[fwd_chunk_id] = _start(super().get_fwd_send_ops(fwd_chunk_id))
        return []

    def get_bwd_send_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        """Send the gradient of a micro-batch's input at once; nothing is left for torch's runtime to send."""
        self._gradients[bwd_chunk_id] = _start(super().get_bwd_send_ops(bwd_chunk_id))
        return []

    def forward_one_chunk(self, fwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        """Forward pass of a micro-batch, which has arrived."""
        _settle(self._gradients, fwd_chunk_id - 2 * self.num_stages)
        return super().forward_one_chunk(fwd_chunk_id, *args, **kwargs)

    def backward_one_chunk(self, bwd_chunk_id: int, *args: Any, **kwargs: Any) -> None:
        """Backward pass of a micro-batch whose gradient has arrived."""
        _settle(self._outputs, bwd_chunk_id)
        super().backward_one_chunk(bwd_chunk_id, *args, **kwargs)

    def settle_all(self) -> None:
        """Wait until all that this stage has sent is on its way."""
        for sent in (self._outputs, self._gradients):
            for micro in tuple(sent):
                _settle(sent, micro)


def _start(ops: Sequence[dist.P2POp]) -> list[dist.Work]:
    started = [op.op(op.tensor, group=op.group, tag=op.tag, group_dst=op.group_peer) for op in ops]
    return [work for work in started if work is not None]


def _settle(sent: dict[int, list[dist.Work]], micro: int) -> None:
    for work in sent.pop(micro, ()):
        work.wait()
