"""`distperf.initialize`: a model, and perhaps an optimizer, of a loop of the user's own become a `Driven` engine."""

from __future__ import annotations

import atexit
import os
import secrets
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import HashStore
from torch.nn.parallel import DistributedDataParallel

from distperf.checkpoint.manifest import Origin
from distperf.contract import ATTEMPT_ENV, RUN_ID_ENV
from distperf.data.samples import Stream
from distperf.data.store import DataOrigin
from distperf.driven import Driven, LoopPasses
from distperf.errors import MeshError, ModelError
from distperf.model.dropout import Draws
from distperf.model.factory import refuse_untrainable, take_values
from distperf.offload.keeping import Offload, check_drives, rank_files
from distperf.optim.adopt import OptimizerRates, adopted, replace_parameters
from distperf.optim.schedules import lr_at
from distperf.parallel.engine import DTYPES, Engine, build_engine
from distperf.parallel.mesh import make_mesh
from distperf.parallel.recompute import apply_recompute
from distperf.precision.scaling import LossScale
from distperf.process_group import Ranks, exchange, join, pick_device
from distperf.recipe.dividing import ParallelSection
from distperf.recipe.load import loop_recipe
from distperf.recipe.loop import LoopRecipe, loop_accumulation, loop_optimizer
from distperf.recipe.mesh import MeshShape, fit_mesh
from distperf.recipe.runspec import OptimizerSpec
from distperf.trainer import Scaled, Trainer

WHERE = "distperf.initialize"


def initialize(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    recipe: str | os.PathLike[str] | Mapping[str, Any] | None = None,
) -> Driven:
    """Take over a model of the caller's own loop: state divided over ranks, precision, accumulation, clipping, offload.

    Works in one process alone, under `distperf launch`, torchrun, and wherever torch's process group is there already.
    All ranks start from rank 0's values. `model` stays the object it is; its parameters live in the engine, and have no
    gradients to look at.

    optimizer: AdamW of torch's, without state; its groups, and what it says of learning rates at each step, count.
        None: as the recipe says.
    recipe: a file or a mapping with the sections of `distperf.recipe.loop.LoopRecipe`.

    Collective.

    Raises:
        RecipeError: the recipe is wrong, or does not fit the number of ranks.
        DistperfError: model or optimizer cannot be taken over as they are.

    Cost: a broadcast of the model, and as `build_engine`; a whole copy of it in memory until that is done.
    """
    said = loop_recipe(recipe)
    _refuse(model, optimizer, said)
    parameters = dict(model.named_parameters())
    spec = loop_optimizer(said) if optimizer is None else adopted(optimizer, parameters)
    device, end = _meet()
    world, mesh = dist.get_world_size(), _mesh(said.parallel)
    accumulation, origin = loop_accumulation(said, world), _origin(said)
    _share_values(model, device)
    engine = _build(model, said, spec, mesh, device, accumulation, origin.run_id)
    if optimizer is not None:
        names = {id(parameter): name for name, parameter in parameters.items()}
        replace_parameters(optimizer, names, model)
    passes = LoopPasses(engine, accumulation, device)
    trainer = Trainer(
        engine,
        passes,
        Stream(said.train.global_batch or world),
        _schedule(said, spec) if optimizer is None else OptimizerRates(optimizer, spec),
        said.train.grad_clip,
        scaled=Scaled(LossScale(), world * accumulation) if said.precision == "fp16" else None,
    )
    return Driven(model, trainer, passes, origin, DTYPES[said.precision], end)


def _refuse(model: nn.Module, optimizer: torch.optim.Optimizer | None, said: LoopRecipe) -> None:
    if optimizer is not None and "optimizer" in said.model_fields_set:
        raise ModelError(
            f"{WHERE}: an optimizer and the recipe's optimizer section are given; take out one of the two"
        )
    if isinstance(model, DistributedDataParallel):
        raise ModelError(
            f"{WHERE}: takes the model that is inside of DistributedDataParallel, whose work the engine does"
        )
    if hasattr(model, "_orig_mod"):
        raise ModelError(f"{WHERE}: takes the model before torch.compile")
    refuse_untrainable(model, WHERE)


def _mesh(parallel: ParallelSection) -> MeshShape:
    shard = None if parallel.dp_shard == "auto" else parallel.dp_shard
    try:
        return fit_mesh(dist.get_world_size(), dp_shard=shard, dp_replicate=parallel.dp_replicate)
    except MeshError as error:
        raise MeshError(f"{WHERE}: parallel.{error}") from None


def _build(
    model: nn.Module,
    said: LoopRecipe,
    spec: OptimizerSpec,
    mesh: MeshShape,
    device: torch.device,
    accumulation: int,
    run_id: str,
) -> Engine:
    """The engine around the model, which keeps its values."""
    drives = said.offload.path or ()
    check_drives(drives)
    fill = take_values(model)
    apply_recompute(model, said.activation_checkpoint, Draws(0, device))
    files = rank_files(drives, run_id, dist.get_rank())
    return build_engine(
        [model],
        zero=said.parallel.zero,
        precision=said.precision,
        mesh=make_mesh(mesh, device),
        device=device,
        optimizer=spec,
        accumulation=accumulation,
        fill=fill,
        offload=Offload(
            said.offload.optimizer, said.offload.optimizer_fraction, files, params=said.offload.params
        ),
    )


def _meet() -> tuple[torch.device, Callable[[], None]]:
    """The device of this rank, and what ends the process group that is there afterwards, where that is ours to do."""
    if dist.is_initialized():
        is_cuda = "nccl" in dist.get_backend()
        local = int(os.environ.get("LOCAL_RANK", "0"))
        return pick_device(local, torch.cuda.device_count() if is_cuda else 0), lambda: None
    if "RANK" not in os.environ:
        device = pick_device(0, torch.cuda.device_count())
        dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    else:
        ranks = Ranks.from_env()
        if ranks.agent_store:  # torchrun's store, in which each restart has a part of its own
            device = pick_device(ranks.local_rank, torch.cuda.device_count())
            dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
        else:
            device, _ = join(ranks)
    atexit.register(_leave)
    return device, _leave


def _leave() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


@torch.no_grad()
def _share_values(model: nn.Module, device: torch.device) -> None:
    """Everyone gets rank 0's parameters and buffers, as from DDP: a loop may have seeded its ranks differently.

    Cost: a broadcast of the model; peak extra its largest tensor.
    """
    if dist.get_world_size() == 1:
        return
    tensors: list[Tensor] = [*model.parameters(), *model.buffers()]
    for tensor in tensors:
        moved = tensor.detach().to(device).contiguous()
        dist.broadcast(moved, src=0)
        tensor.copy_(moved)


def _schedule(said: LoopRecipe, spec: OptimizerSpec) -> Callable[[int], float]:
    return lambda step: lr_at(step, spec.schedule, spec.lr, said.train.steps or step)


def _origin(said: LoopRecipe) -> Origin:
    """What checkpoints say of themselves: the run of distperf's, or one of this start's own."""
    own = os.environ.get(RUN_ID_ENV) or f"loop-{secrets.token_hex(4)}"
    name = os.path.basename(sys.argv[0]) or "loop"
    return Origin(
        run_id=exchange(own)[0],
        name=name,
        attempt=int(os.environ.get(ATTEMPT_ENV) or "1"),
        world_size=dist.get_world_size(),
        model={"family": "own"},
        precision=said.precision,
        zero=said.parallel.zero,
        data=asdict(DataOrigin(0, "of the loop's own", None)),
    )
