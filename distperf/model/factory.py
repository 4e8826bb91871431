"""A model that a function of the user's makes: any nn.Module that maps tokens (B, S) int64 to logits (B, S, V).

The function is called on every rank, on the CPU, with the generators of torch, numpy and Python seeded alike: the
module's own initialisation is what training starts from, on any mesh. So a whole fp32 copy exists on every rank
until the engine has taken its shards.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from distperf.errors import ModelError
from distperf.model.init import Fill
from distperf.model.pipeline_plan import Cut, declared_cut
from distperf.own_code import kind_of, own_function, seeded
from distperf.recipe.runspec import FactorySpec


def made_by_factory(spec: FactorySpec, seed: int) -> tuple[nn.Module, Fill, Cut | None]:
    """The module with its parameters moved to the meta device, the values that they had, and how it can be cut.

    Raises:
        ModelError: the function is not there, does not take these arguments, or makes no trainable module.
        Exception: whatever the function itself raises.
    """
    where = f"model.factory {spec.factory}"
    function = own_function(spec.factory, spec.args, "model.factory", ModelError)
    with seeded(seed):
        module = function(**spec.args)
    if not isinstance(module, nn.Module):
        raise ModelError(f"{where}: returned {kind_of(module)}; it must return a torch.nn.Module")
    refuse_untrainable(module, where)
    module.register_forward_hook(_OutputCheck(where, spec.vocab))
    cut = declared_cut(module)
    return module, take_values(module), cut


def refuse_untrainable(module: nn.Module, where: str) -> None:
    """Raise ModelError for what cannot be trained as it is."""
    parameters = dict(module.named_parameters())
    if not any(parameter.requires_grad for parameter in parameters.values()):
        raise ModelError(f"{where}: the module has no trainable parameter")
    for name, parameter in parameters.items():
        if isinstance(parameter, nn.parameter.UninitializedParameter):
            raise ModelError(
                f"{where}: parameter {name} of a lazy module has no shape yet; give it its sizes"
            )
        if parameter.is_meta:
            raise ModelError(f"{where}: parameter {name} has no values (meta device); build it on the CPU")
        if not parameter.is_floating_point():
            raise ModelError(
                f"{where}: parameter {name} is {parameter.dtype}; parameters are floating-point numbers. "
                "Make it a buffer"
            )
    for name, child in module.named_modules():
        if isinstance(child, nn.modules.batchnorm._NormBase) and child.track_running_stats:
            raise ModelError(
                f"{where}: {name} ({type(child).__name__}) keeps running statistics, which would differ between "
                "ranks and be in no checkpoint. Use a norm without them (LayerNorm, RMSNorm, GroupNorm)"
            )


class _OutputCheck:
    """A forward hook that refuses what are no logits."""

    def __init__(self, where: str, vocab: int) -> None:
        self._where = where
        self._vocab = vocab

    def __call__(self, module: nn.Module, inputs: tuple[Tensor, ...], output: Any) -> None:
        wanted = (*inputs[0].shape, self._vocab)
        is_tensor = isinstance(output, Tensor)
        if is_tensor and tuple(output.shape) == wanted and output.is_floating_point():
            return
        found = f"{tuple(output.shape)} {output.dtype}" if is_tensor else kind_of(output)
        raise ModelError(
            f"{self._where}: for tokens {tuple(inputs[0].shape)} the module returned {found}; it must return logits "
            f"{wanted}, floating-point: (batch, positions, model.vocab)"
        )


def take_values(module: nn.Module) -> Fill:
    """Move a module's parameters to the meta device, ties and strides as they are; returns the values they had."""
    values = {name: parameter.detach() for name, parameter in module.named_parameters()}
    empty: dict[int, nn.Parameter] = {}
    for owner in module.modules():
        for name, parameter in list(owner.named_parameters(recurse=False, remove_duplicate=False)):
            meta = nn.Parameter(parameter.detach().to("meta"), parameter.requires_grad)
            owner.register_parameter(name, empty.setdefault(id(parameter), meta))

    def fill(fqn: str, shape: Sequence[int], start: int, stop: int) -> Tensor:
        assert tuple(values[fqn].shape) == tuple(shape), (fqn, shape)
        return values[fqn].flatten()[start:stop].float()

    return fill
