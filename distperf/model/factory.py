"""A model that a function of the user's makes: any nn.Module that maps tokens (B, S) int64 to logits (B, S, V).

The function is called on every rank, on the CPU, with the generators of torch, numpy and Python seeded alike: the
module's own initialisation is what training starts from, on any mesh. So a whole fp32 copy exists on every rank
until the engine has taken its shards.
"""

from __future__ import annotations

import importlib
import inspect
import os
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from distperf.errors import ModelError
from distperf.model.init import Fill
from distperf.model.pipeline_plan import Cut, declared_cut
from distperf.recipe.runspec import FactorySpec


def made_by_factory(spec: FactorySpec, seed: int) -> tuple[nn.Module, Fill, Cut | None]:
    """The module with its parameters moved to the meta device, the values that they had, and how it can be cut.

    Raises:
        ModelError: the function is not there, does not take these arguments, or makes no trainable module.
        Exception: whatever the function itself raises.
    """
    where = f"model.factory {spec.factory}"
    function = _function(spec.factory, where)
    _refuse_arguments(function, spec.args, where)
    with _seeded(seed):
        module = function(**spec.args)
    if not isinstance(module, nn.Module):
        raise ModelError(f"{where}: returned {_kind(module)}; it must return a torch.nn.Module")
    refuse_untrainable(module, where)
    module.register_forward_hook(_OutputCheck(where, spec.vocab))
    cut = declared_cut(module)
    return module, take_values(module), cut


def _function(name: str, where: str) -> Callable[..., Any]:
    """Import the function; the folder in which ranks run comes first, as for a script that is started there."""
    path, _, attribute = name.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(path)
    except ModuleNotFoundError as error:
        if not error.name or not f"{path}.".startswith(f"{error.name}."):
            raise  # the module is there, and what it imports is not
        raise ModelError(
            f"{where}: no module {error.name} in {os.getcwd()} or among the packages of {sys.executable}. Put it "
            "into launch.workdir, or install it on every node"
        ) from error
    function = getattr(module, attribute, None)
    if not callable(function):
        found = "has no such name" if function is None else f"is {_kind(function)}, no function"
        raise ModelError(f"{where}: {attribute} {found} in {module.__file__}")
    return function  # type: ignore[no-any-return]  # whatever it is, it can be called


def _refuse_arguments(function: Callable[..., Any], args: dict[str, Any], where: str) -> None:
    signature = inspect.signature(function)
    try:
        signature.bind(**args)
    except TypeError as error:
        raise ModelError(f"{where}: {error}; model.args are given as keywords to {signature}") from None


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Inside, the generators that a module's initialisation may draw from are seeded; afterwards they are as before."""
    python, array = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed % 2**32)
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(array)


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
        found = f"{tuple(output.shape)} {output.dtype}" if is_tensor else _kind(output)
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


def _kind(value: object) -> str:
    name = type(value).__name__
    return f"an {name}" if name[:1].lower() in "aeiou" else f"a {name}"
