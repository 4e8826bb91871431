"""How a model of one's own says that it can be cut into stages, and the stages that it is then cut into.

A module that is a first part, blocks one after the other, and a last part declares their names:

    class Decoder(nn.Module):
        pipeline_plan = PipelinePlan(first="embed", blocks="layers", last="head")

        def forward(self, tokens):
            x = self.embed(tokens)              # (B, S) -> (B, S, D)
            for layer in self.layers:
                x = layer(x)                    # (B, S, D) -> (B, S, D)
            return self.head(x)                 # (B, S, D) -> (B, S, V)

The declaration is tried out before it is trusted. Parameters of the first part may be used by the last one too.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from distperf.errors import ModelError
from distperf.recipe.stages import Stage

TRIED = 4  # tokens that the whole and its parts are compared on


@dataclass(frozen=True)
class PipelinePlan:
    """Names of a module's children: what takes tokens, the list of blocks, what gives logits."""

    first: str
    blocks: str
    last: str


@dataclass(frozen=True)
class Cut:
    """A module that can be cut. `width` is D of the stream; `shared`, parameters that both end parts have."""

    module: nn.Module
    plan: PipelinePlan
    width: int
    shared: tuple[str, ...]

    def stage(self, stage: Stage) -> nn.Module:
        """One stage, whose parameters have their names in the whole.

        Raises:
            ModelError: the stages are not made for so many blocks.
        """
        held = len(getattr(self.module, self.plan.blocks))
        if stage.is_last and stage.stop != held:
            raise ModelError(
                f"parallel.pp_layers places {stage.stop} layers; {self.plan.blocks} of the model has {held}"
            )
        # Stages, and the whole, get tensors of their own; these are on the meta device by now, so a copy holds nothing.
        return _Part(copy.deepcopy(self.module), self.plan, stage, self.shared)


def declared_cut(module: nn.Module) -> Cut | None:
    """What the attribute `pipeline_plan` of a module with values says, tried out; None without one.

    Raises:
        ModelError: a part is missing, or the parts together give something else than the whole.
        Exception: whatever the module itself raises.
    """
    plan = getattr(module, "pipeline_plan", None)
    if not isinstance(plan, PipelinePlan):
        return None
    for name in (plan.first, plan.blocks, plan.last):
        if name not in dict(module.named_children()):
            raise ModelError(
                f"pipeline_plan of {type(module).__name__} names {name}, which is no child of it"
            )
    shared = _shared(module, plan)
    whole = Stage(0, 1, 0, len(getattr(module, plan.blocks)))
    tokens = torch.arange(TRIED).unsqueeze(0)
    training = module.training
    with torch.no_grad():
        module.eval()
        stream = getattr(module, plan.first)(tokens)
        same = torch.equal(module(tokens), _Part(module, plan, whole, ())(tokens))
        module.train(training)
    if stream.dim() != 3 or not same:
        found = f"gives {tuple(stream.shape)}" if stream.dim() != 3 else "with the others gives other logits"
        raise ModelError(
            f"pipeline_plan of {type(module).__name__}: {plan.first} {found}; {plan.first}, then each of "
            f"{plan.blocks}, then {plan.last} must be all that forward does, over a stream (B, S, D)"
        )
    return Cut(module, plan, stream.shape[-1], shared)


def _shared(module: nn.Module, plan: PipelinePlan) -> tuple[str, ...]:
    last = {id(parameter) for parameter in getattr(module, plan.last).parameters()}
    first = getattr(module, plan.first).named_parameters(prefix=plan.first)
    return tuple(name for name, parameter in first if id(parameter) in last)


class _Part(nn.Module):
    """The children that a stage has, under their names. What it shares with the first stage, it has once more."""

    def __init__(self, module: nn.Module, plan: PipelinePlan, stage: Stage, shared: tuple[str, ...]) -> None:
        super().__init__()
        self._plan, self._stage = plan, stage
        blocks = getattr(module, plan.blocks)
        if stage.is_first:
            self.add_module(plan.first, getattr(module, plan.first))
        for name in shared if stage.is_last and not stage.is_first else ():
            _register(
                self, name, module.get_parameter(name)
            )  # first, so that this is the name it is known by
        held = nn.ModuleList()
        for index in range(stage.start, stage.stop):
            held.add_module(str(index), blocks[index])
        self.add_module(plan.blocks, held)
        if stage.is_last:
            self.add_module(plan.last, getattr(module, plan.last))

    def forward(self, x: Tensor) -> Tensor:
        """Tokens (B, S), or the stream (B, S, D), to the stream, or to logits (B, S, V)."""
        if self._stage.is_first:
            x = self.get_submodule(self._plan.first)(x)
        for block in self.get_submodule(self._plan.blocks).children():
            x = block(x)
        return self.get_submodule(self._plan.last)(x) if self._stage.is_last else x


def _register(module: nn.Module, path: str, parameter: nn.Parameter) -> None:
    *parts, key = path.split(".")
    for part in parts:
        if part not in dict(module.named_children()):
            module.add_module(part, nn.Module())
        module = module.get_submodule(part)
    module.register_parameter(key, parameter)
