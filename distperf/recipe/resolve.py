"""Recipe -> RunSpec: every "auto" settled by a named simple rule, with its reason. Pure."""

from __future__ import annotations

from typing import TypeVar

from distperf.errors import BatchError, MeshError
from distperf.recipe.batch import MOST_AUTO_MICRO_BATCH, Batch, fit_batch
from distperf.recipe.checkpointing import MemorySection
from distperf.recipe.data_rules import whole_weights
from distperf.recipe.dividing import OffloadSection
from distperf.recipe.feeding import DataSection, EvalSection
from distperf.recipe.mesh import MeshShape, fit_mesh
from distperf.recipe.planner.hardware import UNKNOWN, Hardware
from distperf.recipe.planner.settle import NOT_BESIDE, settle
from distperf.recipe.presets import complete_shape
from distperf.recipe.runspec import (
    RUNSPEC_SCHEMA,
    CheckpointSpec,
    DataSpec,
    EvalSpec,
    FactorySpec,
    GroupSpec,
    HfSpec,
    MemorySpec,
    MixtureSpec,
    ModelFamily,
    ModelSpec,
    OffloadSpec,
    OptimizerSpec,
    ParallelSpec,
    RunSpec,
    ScheduleSpec,
    TrainSpec,
)
from distperf.recipe.schema import Recipe
from distperf.recipe.sections import (
    Auto,
    GroupSection,
    ModelSection,
    OptimizerSection,
    TrainSection,
)
from distperf.recipe.stages import (
    MICRO_BATCHES_PER_RANK,
    auto_micro_batch,
    check_micro_batches,
    given_layers,
    layers_per_stage,
    model_costs,
)
from distperf.recipe.vocab import BYTE_VOCAB

T = TypeVar("T", int, str, tuple[int, ...])


def resolve(
    recipe: Recipe,
    *,
    run_id: str,
    world_size: int,
    checkpoint_dir: str,
    nodes: int = 1,
    hardware: Hardware = UNKNOWN,
) -> RunSpec:
    """The run that a recipe of a model (not of a script) is, on `world_size` ranks; `checkpoint_dir` is absolute.

    What the recipe leaves to the planner is settled by what `hardware` has room for.

    Raises: MeshError, BatchError (both RecipeError) where recipe and world size do not fit together.
    """
    model, data, train = recipe.model, recipe.data, recipe.train
    assert model is not None, "a script has no RunSpec"
    assert data is not None
    assert train is not None
    reasons: dict[str, str] = {}
    mesh = resolve_mesh(recipe, world_size, reasons)
    batch = resolve_batch(recipe, mesh, reasons)
    shape = _model(model, reasons)
    mode = recipe.activation_checkpoint
    spec = RunSpec(
        schema=RUNSPEC_SCHEMA,
        name=recipe.name,
        run_id=run_id,
        world_size=world_size,
        model=shape,
        init=model.init,
        frozen=model.frozen,
        data=_data(data, reasons),
        train=_train(train, batch, _compared(recipe, reasons)),
        optimizer=optimizer_spec(recipe.optimizer, train.steps, reasons),
        precision=recipe.precision,
        parallel=_parallel(recipe, mesh, shape, reasons),
        offload=_offload(recipe.offload),
        activation_checkpoint="none" if mode == "auto" else mode,
        checkpoint=_checkpoint(recipe, checkpoint_dir, nodes, reasons),
        evaluation=_evaluation(recipe.eval, batch, reasons),
        reasons=reasons,
    )
    return settle(
        spec,
        hardware,
        micro_batch=train.micro_batch == "auto",
        checkpointing=mode == "auto",
        offload=recipe.offload.optimizer == "auto",
    )


def _train(train: TrainSection, batch: Batch, check_replicas_every: int) -> TrainSpec:
    return TrainSpec(
        train.steps,
        batch.global_batch,
        batch.micro_batch,
        batch.accumulation,
        train.seed,
        train.grad_clip,
        train.compile,
        check_replicas_every,
    )


def _offload(offload: OffloadSection) -> OffloadSpec:
    """auto: not at all, until that is found not to fit."""
    tier = "none" if offload.optimizer == "auto" else offload.optimizer
    return OffloadSpec(tier, offload.optimizer_fraction, offload.path or (), offload.params)


def _checkpoint(recipe: Recipe, folder: str, nodes: int, reasons: dict[str, str]) -> CheckpointSpec:
    checkpoint = recipe.checkpoint
    return CheckpointSpec(
        every_steps=checkpoint.every_steps,
        save_last=checkpoint.save_last,
        keep=checkpoint.keep,
        dir=folder,
        keep_every=checkpoint.keep_every,
        asynchronous=_asynchronous(recipe, reasons),
        on_error=checkpoint.on_error,
        keep_best=checkpoint.keep_best,
        memory=_memory(checkpoint.memory, nodes, reasons),
    )


def _asynchronous(recipe: Recipe, reasons: dict[str, str]) -> bool:
    """Whether saves are written beside training: not where the state rests on drives because memory has no room."""
    if recipe.checkpoint.asynchronous and recipe.offload.optimizer == "nvme":
        reasons["checkpoint.async"] = NOT_BESIDE
        return False
    return recipe.checkpoint.asynchronous


def _compared(recipe: Recipe, reasons: dict[str, str]) -> int:
    """How often ranks compare weights: never where these are on drives."""
    assert recipe.train is not None
    if recipe.train.check_replicas_every and recipe.offload.params == "nvme":
        reasons["train.check_replicas_every"] = "0: weights that rest on drives are not compared"
        return 0
    return recipe.train.check_replicas_every


def _memory(memory: MemorySection, nodes: int, reasons: dict[str, str]) -> MemorySpec:
    """Copies are on other nodes: there can be no more than there are of those."""
    if memory.every_steps and memory.copies >= nodes:
        reasons["checkpoint.memory.copies"] = f"{nodes - 1}: as many other nodes as there are"
        return MemorySpec(memory.every_steps, nodes - 1, memory.dir)
    return MemorySpec(memory.every_steps, memory.copies, memory.dir)


def _evaluation(evaluation: EvalSection, batch: Batch, reasons: dict[str, str]) -> EvalSpec:
    batches = None if evaluation.batches == "all" else evaluation.batches
    micro = _given(evaluation.micro_batch)
    if micro is None and evaluation.every_steps:
        reasons["eval.micro_batch"] = f"{batch.micro_batch}: as in training"
    return EvalSpec(
        every_steps=evaluation.every_steps,
        samples=None if batches is None else batches * batch.global_batch,
        micro_batch=micro or batch.micro_batch,
    )


def resolve_mesh(recipe: Recipe, world_size: int, reasons: dict[str, str]) -> MeshShape:
    """The mesh of the run. Raises MeshError with the place of the key in the recipe."""
    axes = recipe.parallel
    others = {"pp": axes.pp, "dp_replicate": axes.dp_replicate, "cp": axes.cp, "tp": axes.tp}
    try:
        mesh = fit_mesh(world_size, dp_shard=_given(axes.dp_shard), **others)
    except MeshError as error:
        raise MeshError(_placed(recipe, "parallel.dp_shard", str(error))) from None
    if recipe.offload.params != "none" and world_size > 1 and mesh.dp_shard * mesh.cp == 1:
        text = (
            f"offload.params is {recipe.offload.params}, but no two of the {world_size} ranks share weights (parallel: "
            f"dp_shard 1, cp 1); take a dp_shard of 2 or more, or a single rank, or params: none"
        )
        raise MeshError(_placed(recipe, "offload.params", text))
    if recipe.parallel.dp_shard == "auto":
        reasons["parallel.dp_shard"] = f"{mesh.dp_shard}: what the other axes leave of {world_size} ranks"
    return mesh


def _parallel(recipe: Recipe, mesh: MeshShape, model: ModelFamily, reasons: dict[str, str]) -> ParallelSpec:
    axes, data = recipe.parallel, recipe.data
    assert data is not None
    pp_layers: tuple[int, ...] = ()
    try:
        if isinstance(model, ModelSpec):
            costs = model_costs(model, data.seq_len)
            pp_layers = layers_per_stage(costs, axes.pp_schedule, mesh.pp, _given(axes.pp_layers))
        else:
            pp_layers = given_layers(axes.pp_schedule, mesh.pp, _given(axes.pp_layers) or ())
    except MeshError as error:
        key = "parallel.pp" if axes.pp_layers == "auto" else "parallel.pp_layers"
        raise MeshError(_placed(recipe, key, str(error))) from None
    if pp_layers and axes.pp_layers == "auto":
        reasons["parallel.pp_layers"] = f"{list(pp_layers)}: so that the dearest stage is as cheap as can be"
    return ParallelSpec(
        zero=axes.zero,
        **mesh.sizes(),
        cp_method=axes.cp_method,
        pp_schedule=axes.pp_schedule,
        pp_layers=pp_layers,
    )


def resolve_batch(recipe: Recipe, mesh: MeshShape, reasons: dict[str, str]) -> Batch:
    """The batch of the run. Raises BatchError with the place of the key in the recipe."""
    train = recipe.train
    assert train is not None
    size, schedule = mesh.data_parallel_size, recipe.parallel.pp_schedule
    micro = _given(train.micro_batch)
    if micro is None and mesh.pp > 1:
        micro = auto_micro_batch(train.global_batch // size, schedule, mesh.pp)
    try:
        batch = fit_batch(train.global_batch, micro, size, ranks_per_replica=mesh.product // size)
    except BatchError as error:
        raise BatchError(_placed(recipe, "train.global_batch", f"train.{error}")) from None
    try:
        check_micro_batches(schedule, mesh.pp, batch.accumulation)
    except BatchError as error:
        raise BatchError(_placed(recipe, "parallel.pp_schedule", str(error))) from None
    if train.micro_batch == "auto":
        reasons["train.micro_batch"] = _micro_batch_reason(batch, mesh)
    reasons["train.accumulation"] = (
        f"{batch.accumulation}: global_batch {train.global_batch} / (micro_batch {batch.micro_batch} x {size} "
        "data-parallel ranks)"
    )
    return batch


def _micro_batch_reason(batch: Batch, mesh: MeshShape) -> str:
    share = batch.micro_batch * batch.accumulation
    largest = f"the largest divisor, up to {MOST_AUTO_MICRO_BATCH}, of a rank's share of {share}"
    if mesh.pp == 1:
        return f"{batch.micro_batch}: {largest}"
    wanted = MICRO_BATCHES_PER_RANK * mesh.pp
    if batch.accumulation >= wanted:
        return f"{batch.micro_batch}: {largest} that leaves the pipeline {wanted} micro-batches or more"
    return f"{batch.micro_batch}: the smallest that the schedule can run, to keep the bubble small"


def _given(value: T | Auto) -> T | None:
    return None if value == "auto" else value


def _placed(recipe: Recipe, key: str, text: str) -> str:
    place = recipe.place(key)
    return f"{place}: {text}" if place else text


def _model(model: ModelSection, reasons: dict[str, str]) -> ModelFamily:
    if model.factory is not None:
        assert model.vocab is not None, "by the rules"
        return FactorySpec("factory", model.factory, model.args, model.vocab)
    if model.hf is not None:
        return HfSpec("hf", model.hf)
    shape = complete_shape(model.preset, model.sizes)
    if model.vocab is None:
        reasons["model.vocab"] = f"{BYTE_VOCAB}: the byte tokenizer's 256 bytes and end of document"
    return ModelSpec(vocab=model.vocab or BYTE_VOCAB, **shape)


def _data(data: DataSection, reasons: dict[str, str]) -> DataSpec:
    weights = whole_weights([item.weight for item in data.mixture])
    if weights:
        shares = (f"{weight} from {item.path}" for weight, item in zip(weights, data.mixture, strict=True))
        reasons["data.mixture"] = f"of every {sum(weights):,} samples {', '.join(shares)}"
    return DataSpec(
        text=data.text or (),
        tokens=data.tokens or (),
        mixture=tuple(
            MixtureSpec(item.path, weight) for item, weight in zip(data.mixture, weights, strict=True)
        ),
        factory=data.factory,
        args=data.args,
        synthetic=data.synthetic,
        tokenizer=data.tokenizer,
        field=data.field,
        seq_len=data.seq_len,
        boundary=data.boundary,
        workers=data.workers,
        worker_timeout_s=data.worker_timeout_s,
        validation_share=data.validation if isinstance(data.validation, float) else 0.0,
        validation=data.validation if isinstance(data.validation, tuple) else (),
    )


def optimizer_spec(optimizer: OptimizerSection, steps: int, reasons: dict[str, str]) -> OptimizerSpec:
    """The optimizer of a run of so many steps."""
    schedule = optimizer.schedule
    decay_steps = _given(schedule.decay_steps)
    if decay_steps is None:
        decay_steps, reason = _auto_decay(schedule.name, steps, schedule.warmup_steps)
        reasons["optimizer.schedule.decay_steps"] = f"{decay_steps}: {reason}"
    return OptimizerSpec(
        name=optimizer.name,
        lr=optimizer.lr,
        betas=optimizer.betas,
        eps=optimizer.eps,
        weight_decay=optimizer.weight_decay,
        schedule=ScheduleSpec(schedule.name, schedule.warmup_steps, decay_steps, schedule.min_lr),
        groups=tuple(_group(group, optimizer.lr) for group in optimizer.groups),
    )


def _group(group: GroupSection, lr: float) -> GroupSpec:
    scale = group.lr / lr if group.lr is not None else group.lr_scale or 1.0
    return GroupSpec(group.match, scale, group.weight_decay)


def _auto_decay(schedule: str, steps: int, warmup_steps: int) -> tuple[int, str]:
    after_warmup = steps - warmup_steps
    if schedule == "constant":
        return 0, "a constant schedule has no decay"
    if schedule == "wsd":
        return min(max(1, steps // 10), after_warmup), f"a tenth of {steps} steps"
    return after_warmup, "all steps after warm-up"
