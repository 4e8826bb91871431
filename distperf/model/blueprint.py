"""What the runtime knows of a model, of whichever family: how to build it, what it starts from, what it costs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from torch import nn

from distperf.errors import ModelError
from distperf.model.factory import made_by_factory
from distperf.model.flops import flops_per_token
from distperf.model.hf import made_by_transformers
from distperf.model.imported import imported_fill
from distperf.model.init import Fill, fill_for
from distperf.model.llama import build_model, shared_by_stages, tensor_plan
from distperf.model.tensor_plan import TensorPlan, declared_plan, transformers_plan
from distperf.optim.groups import matches, nearest_names
from distperf.recipe.runspec import FactorySpec, HfSpec, ModelFamily, ModelSpec
from distperf.recipe.stages import Stage


@dataclass(frozen=True)
class Blueprint:
    """A model that is still to be built. Any family maps tokens (B, S) int64 to logits (B, S, V).

    build: the whole model, parameters on the meta device and buffers either with values or with `init_buffers`.
    fill: the initial values, the same on every rank and mesh.
    flops_per_token: of forward and backward, by sequence length; None where nobody knows.
    tensor_plan: how its layers are divided over ranks; None where it does not say, and cannot be.
    build_stage: one stage of a pipeline, as `build`; None where the model cannot be cut.
    shared: names of parameters that both the first and the last stage have.
    width: of what goes from stage to stage, (B, S, width); None where the model cannot be cut.
    """

    build: Callable[[], nn.Module]
    fill: Fill
    vocab: int
    flops_per_token: Callable[[int], int] | None = None
    tensor_plan: TensorPlan | None = None
    build_stage: Callable[[Stage], nn.Module] | None = None
    shared: tuple[str, ...] = ()
    width: int | None = None

    @property
    def names(self) -> list[str]:
        """Of all parameters of the whole model."""
        return [name for name, _ in self.build().named_parameters()]

    def stage(self, stage: Stage) -> nn.Module:
        """One stage of a pipeline. Raises ModelError where the model cannot be cut."""
        if self.build_stage is None:
            raise ModelError(
                "parallel.pp: this model does not say how it can be cut into stages; declare it (see "
                "distperf.model.pipeline_plan), or set parallel.pp: 1"
            )
        return self.build_stage(stage)


def blueprint_of(
    model: ModelFamily, seed: int, frozen: tuple[str, ...] = (), init: str | None = None
) -> Blueprint:
    """The blueprint of what a recipe names. `frozen`: patterns of parameters that are not trained.

    `init`: a folder of transformers whose weights a Llama starts from.

    Raises:
        ModelError: the model cannot be had, or a pattern names none of its parameters.
    """
    blueprint = _family(model, seed)
    if init is not None:
        assert isinstance(model, ModelSpec), "by the rules of recipes"
        blueprint = replace(blueprint, fill=imported_fill(model, Path(init), f"model.init {init}"))
    return freeze(blueprint, frozen)


def _family(model: ModelFamily, seed: int) -> Blueprint:
    if isinstance(model, FactorySpec):
        module, fill, cut = made_by_factory(model, seed)
        made = Blueprint(lambda: module, fill, model.vocab, tensor_plan=declared_plan(module))
        return (
            made if cut is None else replace(made, build_stage=cut.stage, shared=cut.shared, width=cut.width)
        )
    if isinstance(model, HfSpec):
        module, fill, vocab = made_by_transformers(model, seed)
        return Blueprint(lambda: module, fill, vocab, tensor_plan=transformers_plan(module.config))
    return Blueprint(
        build=lambda: build_model(model),
        fill=fill_for(model, seed),
        vocab=model.vocab,
        flops_per_token=lambda seq_len: flops_per_token(model, seq_len),
        tensor_plan=tensor_plan(model),
        build_stage=lambda stage: build_model(model, stage),
        shared=shared_by_stages(model),
        width=model.hidden,
    )


def freeze(blueprint: Blueprint, patterns: tuple[str, ...]) -> Blueprint:
    """The same model, of which parameters whose names match a pattern are not trained.

    Raises:
        ModelError: a pattern matches no parameter.
    """
    if not patterns:
        return blueprint

    refuse_unmatched("model.frozen", patterns, blueprint.names)

    def without_gradients(model: nn.Module) -> nn.Module:
        for name, parameter in model.named_parameters():
            if matches(name, patterns):
                parameter.requires_grad_(False)
        return model

    cut = blueprint.build_stage
    return replace(
        blueprint,
        build=lambda: without_gradients(blueprint.build()),
        build_stage=None if cut is None else lambda stage: without_gradients(cut(stage)),
        # What is frozen has no gradients to reckon, so the usual count of arithmetic would be too high.
        flops_per_token=None,
    )


def refuse_unmatched(key: str, patterns: tuple[str, ...], names: list[str]) -> None:
    """Raise ModelError where a pattern of a recipe's `key` matches none of a model's parameter names."""
    for pattern in patterns:
        if not any(matches(name, (pattern,)) for name in names):
            nearest = ", ".join(nearest_names(pattern, names))
            raise ModelError(
                f"{key}: {pattern} matches no parameter of this model; the nearest names are {nearest}"
            )
