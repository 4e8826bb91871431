"""From a model on the meta device to one whose parameters live where an engine keeps them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from distperf.errors import DistperfError
from distperf.optim.groups import treatment
from distperf.parallel.buckets import ParameterInfo
from distperf.recipe.runspec import OptimizerSpec

# (fqn, full shape, start, stop) -> fp32 values (stop - start,) of the flattened parameter
Fill = Callable[[str, Sequence[int], int, int], Tensor]


def parameter_infos(model: nn.Module, optimizer: OptimizerSpec) -> list[ParameterInfo]:
    """All parameters in order of registration, tied ones once.

    Raises:
        DistperfError: a parameter is an expanded view, so its elements are not its own.
    """
    infos = []
    for fqn, parameter in model.named_parameters():
        if any(
            stride == 0 and size > 1 for stride, size in zip(parameter.stride(), parameter.shape, strict=True)
        ):
            raise DistperfError(
                f"cannot shard parameter {fqn}: it is an expanded view (shape {tuple(parameter.shape)}, "
                f"strides {parameter.stride()}), whose elements share memory. Make it a parameter of its real "
                "size and expand it in forward."
            )
        shape = tuple(parameter.shape)
        treated = treatment(fqn, shape, optimizer)
        infos.append(ParameterInfo(fqn, shape, parameter.numel(), parameter.requires_grad, treated))
    return infos


def install(model: nn.Module, tensors: Mapping[str, Tensor]) -> dict[str, nn.Parameter]:
    """Make `tensors` (by fqn) the model's parameters; ties stay ties. Returns the new parameters by fqn."""
    fresh = {
        id(old): (fqn, nn.Parameter(tensors[fqn], requires_grad=old.requires_grad))
        for fqn, old in model.named_parameters()
    }
    for module in model.modules():
        for name, old in list(module.named_parameters(recurse=False, remove_duplicate=False)):
            module.register_parameter(name, fresh[id(old)][1])
    return dict(fresh.values())


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
