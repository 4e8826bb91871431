"""The layers of a model that says nothing about itself."""

from __future__ import annotations

from torch import nn


def repeated_blocks(model: nn.Module) -> list[nn.Module]:
    """The layers of a model, whatever they are called: the entries of the module list that holds most parameters.

    A list inside another (the experts of a layer) does not count, nor one of simple modules (heads, of which a rank
    may use one and not the others). Empty where there is none.
    """
    lists = [
        (name, module)
        for name, module in model.named_modules()
        if isinstance(module, nn.ModuleList) and any(_is_composite(entry) for entry in module)
    ]
    outer = [module for name, module in lists if not any(name.startswith(f"{other}.") for other, _ in lists)]
    return list(max(outer, key=_held, default=[]))


def _is_composite(module: nn.Module) -> bool:
    return sum(any(True for _ in child.parameters(recurse=False)) for child in module.modules()) > 1


def _held(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())
