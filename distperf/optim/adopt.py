"""An optimizer of torch's as what distperf's engines do themselves: AdamW over groups of parameters.

It stays in the user's hands: what it, or a scheduler of torch's around it, says of learning rates is read before every
update. It has no state of its own any more.
"""

from __future__ import annotations

import glob
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from distperf.errors import DistperfError
from distperf.recipe.runspec import GroupSpec, OptimizerSpec, ScheduleSpec

BY_OPTIMIZER = ScheduleSpec("constant", 0, 0, 0.0)


def adopted(optimizer: torch.optim.Optimizer, parameters: Mapping[str, nn.Parameter]) -> OptimizerSpec:
    """The same update, by names of `parameters`.

    Raises:
        DistperfError: it is no AdamW, has begun already, or its parameters are not those that are to be trained.
    """
    if not isinstance(optimizer, torch.optim.Adam) or any(_other(group) for group in optimizer.param_groups):
        raise DistperfError(
            f"distperf.initialize: the optimizer is {type(optimizer).__name__}; it takes torch.optim.AdamW (or Adam "
            "without weight decay), without amsgrad and maximize. Leave it out, and say what is wanted in the recipe's "
            "optimizer section"
        )
    if optimizer.state:
        raise DistperfError(
            "distperf.initialize: the optimizer has made steps, whose moments would be lost; give it a fresh one, and "
            "go on from a checkpoint with engine.load"
        )
    names = {id(parameter): name for name, parameter in parameters.items()}
    _refuse_others(optimizer, parameters, names)
    rates = [_peak(group) for group in optimizer.param_groups]
    base = max(rates) or 1.0
    first = optimizer.param_groups[0]
    return OptimizerSpec(
        name="adamw",
        lr=base,
        betas=(float(first["betas"][0]), float(first["betas"][1])),
        eps=float(first["eps"]),
        weight_decay=0.0,
        schedule=BY_OPTIMIZER,
        groups=tuple(
            GroupSpec(
                match=tuple(glob.escape(names[id(parameter)]) for parameter in group["params"]),
                lr_scale=rate / base if any(rates) else 1.0,
                weight_decay=float(group["weight_decay"]),
            )
            for group, rate in zip(optimizer.param_groups, rates, strict=True)
        ),
    )


def _other(group: Mapping[str, Any]) -> bool:
    """Asks for something else than AdamW does."""
    coupled = group["weight_decay"] and not group.get("decoupled_weight_decay")
    return bool(group["amsgrad"] or group["maximize"] or coupled)


def _peak(group: Mapping[str, Any]) -> float:
    """The learning rate before a scheduler had its say, which may begin with 0."""
    return float(group.get("initial_lr", group["lr"]))


def _refuse_others(
    optimizer: torch.optim.Optimizer, parameters: Mapping[str, nn.Parameter], names: Mapping[int, str]
) -> None:
    held = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    if any(id(parameter) not in names for parameter in held):
        raise DistperfError("distperf.initialize: the optimizer has parameters that the model has not")
    known = {id(parameter) for parameter in held}
    left = [name for name, p in parameters.items() if p.requires_grad and id(p) not in known]
    if left:
        raise DistperfError(
            f"distperf.initialize: {left[0]}{f' and {len(left) - 1} more' if left[1:] else ''} of the model's "
            "parameters are in no group of the optimizer; put them in one, or do not train them: requires_grad_(False)"
        )
    for key in ("betas", "eps"):
        found = {str(group[key]) for group in optimizer.param_groups}
        if len(found) > 1:
            raise DistperfError(
                f"distperf.initialize: groups of the optimizer differ in {key} ({', '.join(sorted(found))}); they may "
                "differ in lr and weight_decay"
            )


def replace_parameters(optimizer: torch.optim.Optimizer, names: Mapping[int, str], fresh: nn.Module) -> None:
    """Have the groups hold the model's new parameters in place of the old ones, whose memory is then free.

    A step of the optimizer itself finds no gradient in them and changes nothing: a scheduler may count it.
    """
    parameters = dict(fresh.named_parameters())
    for group in optimizer.param_groups:
        group["params"] = [parameters[names[id(old)]] for old in group["params"]]


class OptimizerRates:
    """The learning rate of a step, as the user's optimizer says now."""

    def __init__(self, optimizer: torch.optim.Optimizer, spec: OptimizerSpec) -> None:
        self._optimizer = optimizer
        self._scales = [group.lr_scale for group in spec.groups]

    def __call__(self, _step: int) -> float:
        """That of a group whose scale is 1. Raises DistperfError where groups have come to differ otherwise."""
        rates = [float(group["lr"]) for group in self._optimizer.param_groups]
        base = rates[self._scales.index(1.0)]
        wanted = [scale * base for scale in self._scales]
        if not all(map(lambda a, b: math.isclose(a, b, rel_tol=1e-6, abs_tol=1e-30), rates, wanted)):
            raise DistperfError(
                f"the learning rates of the optimizer's groups are {rates}; with distperf.initialize they stay in "
                f"the proportions in which they began, {self._scales}"
            )
        return base
