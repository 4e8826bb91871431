"""Tensor and sequence parallelism: layers divided over ranks as their model's plan declares.

Parameters become DTensors, so that engines and checkpoints can read off each what part of it this rank has.
Inside a divided module DTensor does the arithmetic; between modules travel plain tensors of this rank's part, but
for a norm's output and logits. Those stay DTensors: used together with a plain tensor they raise an error, where
local copies would quietly give gradients that lack the other ranks' share.

torch's own styles are not used, for what they do to parameters: SequenceParallel makes frozen ones trainable,
two modules that share one lose it, and the gradient of a divided embedding is made whole on every rank.

Legend: N ranks of tp, B samples, S positions, D hidden, V vocabulary, w bytes of an activation.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard, distribute_tensor

from distperf.errors import DistperfError, MeshError
from distperf.model.tensor_plan import Style, TensorPlan
from distperf.parallel.context import divide_rows
from distperf.recipe.tensor_rules import indivisible

POSITIONS = Shard(1)  # of activations (B, S, ...)
HEADS = Shard(2)  # of (B, S, H, K)
FEATURES = Shard(-1)


@dataclass(frozen=True)
class Layout:
    """How a module's parameters lie, and its input and output before and after it."""

    kind: type[nn.Module]
    weight: Placement
    bias: Placement
    takes: Placement
    gives: Placement
    gives_plain: bool = True


def layouts(stream: Placement) -> dict[Style, Layout]:
    """The styles of `distperf.model.tensor_plan`, in placements; `stream` is how the residual stream lies."""
    whole = Replicate()
    return {
        "embedding": Layout(nn.Embedding, Shard(0), whole, whole, stream),
        "norm": Layout(nn.Module, whole, whole, stream, whole, gives_plain=False),
        "head_norm": Layout(nn.Module, whole, whole, HEADS, HEADS),
        "colwise": Layout(nn.Linear, Shard(0), Shard(0), whole, FEATURES),
        "rowwise": Layout(nn.Linear, Shard(1), whole, FEATURES, stream),
        "head": Layout(nn.Linear, Shard(0), Shard(0), whole, FEATURES, gives_plain=False),
    }


def apply_tensor_parallel(module: nn.Module, device_mesh: DeviceMesh, plan: TensorPlan) -> None:
    """Divide a model, or a pipeline stage of it, that is on the meta device over the ranks of `device_mesh` (1-D).

    It then takes token ids (B, S), or as a later stage the stream (B, S / N, D), and gives the stream, or logits
    (B, S, V) as a DTensor divided over V. Shared parameters stay shared. Gradients of what each rank has whole may
    arrive as Partial, to be summed. Dropout on the stream is told which positions it sees, counted within the span
    that it has: where the sequence itself is divided (context parallelism), that comes first.

    Raises:
        MeshError: N does not divide one of the plan's units or a matrix, or leaves a rank without vocabulary.
        DistperfError: the plan does not fit the model.

    Cost: a block sends 8 (N - 1) / N * B * S * D * w bytes a rank, half of it forward: an all-gather after each
    norm, a reduce-scatter after each rowwise, and in backward the reverse. So does the embedding, and the head, a
    quarter of that each. Without `plan.sequence` as much, as all-reduces. Peak extra 2 * B * S * D * w.
    """
    if (problem := indivisible(device_mesh.size(), plan.units)) is not None:
        raise MeshError(f"cannot divide the model over tp: {problem}")
    _refuse_dropout(module)
    styles = layouts(POSITIONS if plan.sequence else Replicate())
    divided: dict[Tensor, nn.Parameter] = {}
    for fqn, child in module.named_modules():
        style = plan.style_of(fqn)
        if style is not None:
            _check(fqn, child, style, styles[style], device_mesh.size())
            _divide_parameters(fqn, child, styles[style], device_mesh, divided)
            _wrap(child, styles[style], device_mesh)
    if plan.sequence:
        divide_rows(module, device_mesh.get_local_rank(), device_mesh.size())
    plain = [fqn for fqn, parameter in module.named_parameters() if not isinstance(parameter, DTensor)]
    if plain:
        raise DistperfError(
            f"cannot divide the model over tp: its plan has no style for the module of {plain[0]} (and of "
            f"{len(plain) - 1} more parameters). Every module with parameters takes one; patterns: "
            f"{', '.join(plan.styles)}"
        )


def _refuse_dropout(module: nn.Module) -> None:
    """Masks from a generator would be the same where ranks hold other positions, or differ where they hold the same."""
    for fqn, child in module.named_modules():
        if isinstance(child, nn.modules.dropout._DropoutNd) and child.p > 0:
            raise DistperfError(
                f"cannot divide the model over tp: {fqn} draws from a generator that knows no ranks. On the stream use "
                "distperf.model.dropout.Dropout, whose masks go by position; elsewhere set its p to 0"
            )


def _check(fqn: str, module: nn.Module, style: Style, layout: Layout, size: int) -> None:
    if not isinstance(module, layout.kind):
        raise DistperfError(
            f"cannot divide {fqn} as {style}: it is a {type(module).__name__}, and {style} takes a "
            f"{layout.kind.__name__}"
        )
    if not isinstance(layout.weight, Shard):
        return
    weight = module.weight
    assert isinstance(weight, Tensor)
    length = weight.shape[layout.weight.dim]
    if style in ("embedding", "head"):
        if -(-length // size) * (size - 1) >= length:
            raise MeshError(
                f"cannot divide {fqn} over tp: {length} rows would leave one of {size} ranks without"
            )
    elif (problem := indivisible(size, {f"dim {layout.weight.dim} of {fqn}.weight": length})) is not None:
        raise MeshError(f"cannot divide the model over tp: {problem}")
    if isinstance(module, nn.Embedding) and (module.max_norm or module.scale_grad_by_freq or module.sparse):
        raise DistperfError(
            f"cannot divide {fqn} over tp: an embedding with max_norm, scale_grad_by_freq or sparse needs all rows"
        )


def _divide_parameters(
    fqn: str, module: nn.Module, layout: Layout, mesh: DeviceMesh, divided: dict[Tensor, nn.Parameter]
) -> None:
    """Replace the module's parameters by DTensors; one that another module shares, by the same one."""
    for name, whole in list(module.named_parameters(recurse=False)):
        placement = layout.bias if name == "bias" else layout.weight
        if whole not in divided:
            part = distribute_tensor(whole.detach(), mesh, [placement])
            divided[whole] = nn.Parameter(part, requires_grad=whole.requires_grad)
        shared = divided[whole]
        assert isinstance(shared, DTensor)
        if shared.placements != (placement,):
            raise DistperfError(
                f"cannot divide {fqn}.{name} over tp by {placement}: another module shares it, by "
                f"{shared.placements[0]}"
            )
        module.register_parameter(name, shared)


def _wrap(module: nn.Module, layout: Layout, mesh: DeviceMesh) -> None:
    """Let the module take and give what its layout says."""
    if layout.kind is nn.Embedding:
        module.forward = partial(_look_up, module, mesh, layout.gives)
        return
    module.register_forward_pre_hook(partial(_enter, mesh, layout))
    module.register_forward_hook(partial(_leave, layout))


def _enter(mesh: DeviceMesh, layout: Layout, _module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
    x, *rest = args
    if not isinstance(x, DTensor):
        x = DTensor.from_local(x, mesh, [layout.takes])
    return (x, *rest)


def _leave(layout: Layout, _module: nn.Module, _args: tuple[Any, ...], out: DTensor) -> Tensor:
    out = out.redistribute(placements=[layout.gives])
    return out.to_local() if layout.gives_plain else out


def _look_up(module: nn.Module, mesh: DeviceMesh, gives: Placement, ids: Tensor) -> Tensor:
    """Rows for `ids` (B, S) int64, all of them on every rank, from whichever rank has each: the stream.

    A function of its own since DTensor's embedding gives its gradient whole, (V, D), on every rank.
    """
    assert isinstance(module, nn.Embedding)
    weight = module.weight
    assert isinstance(weight, DTensor)
    if gives == POSITIONS and (problem := indivisible(mesh.size(), {"positions": ids.shape[1]})) is not None:
        raise MeshError(f"cannot divide sequences over tp: {problem}")
    table = weight.to_local()
    first = _first_row(weight)
    mine = (ids >= first) & (ids < first + len(table))
    padding = -1 if module.padding_idx is None else module.padding_idx - first
    found = F.embedding(
        torch.where(mine, ids - first, 0), table, padding_idx=padding if 0 <= padding < len(table) else None
    )
    found = found.masked_fill(~mine.unsqueeze(-1), 0)
    return DTensor.from_local(found, mesh, [Partial()]).redistribute(placements=[gives]).to_local()


def _first_row(weight: DTensor) -> int:
    """Where this rank's rows of a matrix divided by rows begin."""
    mesh = weight.device_mesh
    return min(mesh.get_local_rank() * -(-weight.shape[0] // mesh.size()), weight.shape[0])
