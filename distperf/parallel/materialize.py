"""From a model on the meta device to one whose parameters live where an engine keeps them."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from distperf.errors import DistperfError
from distperf.optim.groups import Treatment, treatment
from distperf.parallel.buckets import ParameterInfo
from distperf.recipe.runspec import OptimizerSpec

# (fqn, full shape, start, stop) -> fp32 values (stop - start,) of the flattened parameter
Fill = Callable[[str, Sequence[int], int, int], Tensor]

# Elements made at a time where a rank's block is no interval of the parameter: bounds the surplus that is thrown away.
FILL_BLOCK = 1 << 20


def parameter_infos(
    parts: Iterable[nn.Module], optimizer: OptimizerSpec, tied: Collection[str] = ()
) -> list[ParameterInfo]:
    """All parameters in order of registration, those of one name or shared by modules once.

    `tied`: names of parameters that another pipeline stage has too.

    Raises:
        DistperfError: a parameter is an expanded view, so its elements are not its own.
    """
    infos: dict[str, ParameterInfo] = {}
    for part in parts:
        for fqn, parameter in part.named_parameters():
            infos.setdefault(fqn, _info(fqn, parameter, optimizer, fqn in tied))
    return list(infos.values())


def _info(fqn: str, parameter: nn.Parameter, optimizer: OptimizerSpec, tied: bool) -> ParameterInfo:
    shape = tuple(parameter.shape)
    if any(stride == 0 and size > 1 for stride, size in zip(parameter.stride(), shape, strict=True)):
        raise DistperfError(
            f"cannot shard parameter {fqn}: it is an expanded view (shape {shape}, strides {parameter.stride()}), "
            "whose elements share memory. Make it a parameter of its real size and expand it in forward."
        )
    treated = treatment(fqn, shape, optimizer)
    divided = isinstance(parameter, DTensor) and any(place.is_shard() for place in parameter.placements)
    return ParameterInfo(fqn, shape, *_block(parameter), parameter.requires_grad, treated, divided, tied)


def _block(parameter: nn.Parameter) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shape of this rank's block of a parameter, and where it starts in the whole."""
    shape = tuple(parameter.shape)
    if not isinstance(parameter, DTensor):
        return shape, tuple(0 for _ in shape)
    return compute_local_shape_and_global_offset(shape, parameter.device_mesh, parameter.placements)


def filled_parameters(model: nn.Module, fill: Fill, dtype: torch.dtype, device: torch.device) -> None:
    """Give a model on the meta device its values, without an engine: to compute with, not to train.

    Cost: peak extra this rank's block of one parameter, fp32.
    """
    names = {id(parameter): fqn for fqn, parameter in model.named_parameters()}

    def values(parameter: nn.Parameter) -> Tensor:
        shape, offsets = _block(parameter)
        info = ParameterInfo(
            names[id(parameter)], tuple(parameter.shape), shape, offsets, False, Treatment(1.0, 0.0)
        )
        return block_values(fill, info, 0, info.numel).view(shape).to(device, dtype)

    place_buffers(model, device)
    replace_parameters(model, values)


def block_values(fill: Fill, info: ParameterInfo, start: int, stop: int) -> Tensor:
    """Initial values, fp32 (stop - start,), of elements [start, stop) of this rank's flattened block of a parameter."""
    row, whole_row = math.prod(info.local_shape[1:]), math.prod(info.shape[1:])
    if row == whole_row:  # whole rows (or all): an interval of the parameter
        first = info.offsets[0] * row if info.offsets else 0
        return fill(info.fqn, info.shape, first + start, first + stop)
    inner = tuple(slice(o, o + n) for o, n in zip(info.offsets[1:], info.local_shape[1:], strict=True))
    values = torch.empty(stop - start)
    step = max(1, FILL_BLOCK // whole_row)
    for top in range(start // row, -(-stop // row), step):
        bottom = min(top + step, -(-stop // row))
        first = info.offsets[0] + top
        rows = fill(info.fqn, info.shape, first * whole_row, (info.offsets[0] + bottom) * whole_row)
        block = rows.view(bottom - top, *info.shape[1:])[(slice(None), *inner)].flatten()
        low, high = max(start, top * row), min(stop, bottom * row)
        values[low - start : high - start] = block[low - top * row : high - top * row]
    return values


def local(tensor: Tensor) -> Tensor:
    """This rank's block of a tensor, a view of its storage."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def local_gradient(parameter: Tensor, grad: Tensor) -> Tensor:
    """This rank's block of the complete gradient, divided over tensor-parallel ranks as the parameter is.

    Cost: as torch's redistribution where the gradient is a partial sum (norms between sequence-parallel regions:
    an all-reduce of their size), else nothing.
    """
    if not isinstance(grad, DTensor):
        return grad
    assert isinstance(parameter, DTensor), "only parameters of a tensor-parallel model have such gradients"
    return grad.redistribute(placements=parameter.placements).to_local()


def install(parts: Iterable[nn.Module], tensors: Mapping[str, Tensor]) -> dict[str, nn.Parameter]:
    """Make `tensors` (this rank's blocks, by fqn) the parameters of the parts; ties stay ties.

    Returns the new parameters by fqn.
    """
    fresh: dict[str, nn.Parameter] = {}
    for part in parts:
        names = {id(parameter): fqn for fqn, parameter in part.named_parameters()}

        def named(old: nn.Parameter, names: dict[int, str] = names) -> Tensor:
            fqn = names[id(old)]
            return fresh.get(fqn, tensors[fqn])

        for fqn, parameter in replace_parameters(part, named).items():
            fresh.setdefault(fqn, parameter)
    return fresh


def replace_parameters(part: nn.Module, block: Callable[[nn.Parameter], Tensor]) -> dict[str, nn.Parameter]:
    """Give every parameter new storage: this rank's block of it, or a parameter as it is. Ties stay ties.

    Returns the new parameters by fqn.
    """
    olds = dict(part.named_parameters())
    fresh = {id(old): _parameter(old, block(old)) for old in olds.values()}
    for module in part.modules():
        for name, old in list(module.named_parameters(recurse=False, remove_duplicate=False)):
            module.register_parameter(name, fresh[id(old)])
    return {fqn: fresh[id(old)] for fqn, old in olds.items()}


def _parameter(old: nn.Parameter, block: Tensor) -> nn.Parameter:
    if isinstance(block, nn.Parameter):
        return block
    return nn.Parameter(_like(old, block), requires_grad=old.requires_grad)


def _like(parameter: nn.Parameter, block: Tensor) -> Tensor:
    if not isinstance(parameter, DTensor):
        return block
    return DTensor.from_local(
        block,
        parameter.device_mesh,
        parameter.placements,
        run_check=False,
        shape=parameter.shape,
        stride=parameter.stride(),
    )


def place_buffers(model: nn.Module, device: torch.device) -> None:
    """Buffers on `device`, in their own dtype; a module whose buffers have no values yet makes them itself.

    Raises:
        DistperfError: a buffer is on the meta device and its module has no `init_buffers(device)`.
    """
    for path, module in model.named_modules():
        empty = [name for name, buffer in module.named_buffers(recurse=False) if buffer.is_meta]
        if empty and not hasattr(module, "init_buffers"):
            where = f"{path}.{empty[0]}" if path else empty[0]
            raise DistperfError(
                f"buffer {where} has no values: it was made on the meta device. Give {type(module).__name__} a "
                "method init_buffers(device) that sets its buffers."
            )
        if empty:
            module.init_buffers(device)
        for name, buffer in list(module.named_buffers(recurse=False)):
            if buffer.device != device:
                module._buffers[name] = buffer.to(device)  # keeps whether it is persistent
