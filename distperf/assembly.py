"""What of a model this rank computes, with every technique applied, in the order in which they stand on each other."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from distperf.errors import DistperfError
from distperf.model.blueprint import Blueprint
from distperf.model.dropout import Draws, attach_draws
from distperf.parallel.compiled import compile_blocks
from distperf.parallel.context import apply_context_parallel, context_slice
from distperf.parallel.fp8 import apply_fp8
from distperf.parallel.mesh import Mesh
from distperf.parallel.recompute import apply_recompute
from distperf.parallel.tensor import apply_tensor_parallel
from distperf.passes import Batches
from distperf.recipe.runspec import RunSpec
from distperf.recipe.stages import Stage, held_stages


@dataclass(frozen=True)
class Assembly:
    """The model, or the pipeline stages of it that this rank holds, on the meta device.

    `stages` are those of the parts, or empty without a pipeline; `draws` say which samples dropout falls on.
    """

    parts: list[nn.Module]
    stages: tuple[Stage, ...]
    draws: Draws


def assemble(spec: RunSpec, blueprint: Blueprint, mesh: Mesh, device: torch.device) -> Assembly:
    """Build the model, cut it into stages, make its products fp8, divide sequences, then layers; recompute, compile.

    Raises:
        DistperfError: the model cannot be divided in a way that the recipe asks for.
    """
    own = own_stages(spec, mesh)
    draws = Draws(spec.train.seed, device)
    parts = [blueprint.stage(stage) for stage in own] if own else [blueprint.build()]
    for part in parts:
        if spec.precision == "fp8":
            apply_fp8(part)
        if (context := mesh.group("cp")) is not None:
            apply_context_parallel(part, context, spec.parallel.cp_method)
        if (tensor := mesh.device_mesh("tp")) is not None:
            if blueprint.tensor_plan is None:
                raise DistperfError(
                    f"parallel.tp is {spec.parallel.tp}, but this model declares no tensor plan (see "
                    "distperf.model.tensor_plan); set parallel.tp: 1, or declare one"
                )
            apply_tensor_parallel(part, tensor, blueprint.tensor_plan)
        attach_draws(part, draws)
        apply_recompute(part, spec.activation_checkpoint, draws)
        if spec.train.compile:
            compile_blocks(part, device)
    return Assembly(parts, own, draws)


def own_stages(spec: RunSpec, mesh: Mesh) -> tuple[Stage, ...]:
    """The pipeline stages of this rank, in model order; empty without a pipeline."""
    if mesh.shape.pp == 1:
        return ()
    layers, schedule = spec.parallel.pp_layers, spec.parallel.pp_schedule
    return held_stages(layers, schedule, mesh.shape.pp, mesh.coordinates["pp"])


class OwnRows:
    """A loader's micro-batches, of whose sequences this rank gets its part; tells dropout which samples they are."""

    def __init__(self, loader: Batches, mesh: Mesh, method: str) -> None:
        self._loader = loader
        self._rank, self._size = mesh.coordinates["cp"], mesh.shape.cp
        self._method = method

    def batch(self, step: int, micro: int) -> tuple[Tensor, Tensor]:
        """Inputs and targets (B, S / cp) int64."""
        inputs, targets = self._loader.batch(step, micro)
        if self._size == 1:
            return inputs, targets
        return self._own(inputs), self._own(targets)

    def first(self, step: int, micro: int) -> int:
        """Stream position of the micro-batch's first sample."""
        return self._loader.first(step, micro)

    def _own(self, tensor: Tensor) -> Tensor:
        return context_slice(tensor, self._rank, self._size, self._method)
