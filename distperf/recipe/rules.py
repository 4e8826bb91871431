"""What must hold between the keys of a recipe. Pure: a recipe in, the faults out, each with the key it concerns."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from distperf.recipe.checkpoint_rules import checkpoint_faults
from distperf.recipe.context_rules import context_problem
from distperf.recipe.data_rules import data_faults
from distperf.recipe.dividing import ParallelSection
from distperf.recipe.feeding import DataSection
from distperf.recipe.launching import LaunchSection
from distperf.recipe.machines import HardwareSection
from distperf.recipe.offload_rules import offload_faults
from distperf.recipe.presets import complete_shape
from distperf.recipe.schedules import SCHEDULES
from distperf.recipe.scheduling import SlurmSection
from distperf.recipe.schema import Recipe
from distperf.recipe.sections import ModelSection, OptimizerSection
from distperf.recipe.tensor_rules import indivisible, llama_units
from distperf.recipe.vocab import BYTE_VOCAB

TRAINING_KEYS = (
    "model",
    "data",
    "train",
    "optimizer",
    "precision",
    "parallel",
    "offload",
    "activation_checkpoint",
    "checkpoint",
    "eval",
    "hardware",
)
REQUIRED_KEYS = ("model", "data", "train")


@dataclass(frozen=True)
class Fault:
    """A rule that does not hold."""

    key: str  # dotted path of the key to change; "" for the recipe as a whole
    text: str
    at_key: bool = False  # the place to show is the key's, not its value's


def section_faults(present: Collection[str]) -> Iterator[Fault]:
    """What is wrong with which keys stand at the top."""
    if "script" in present:
        for key in TRAINING_KEYS:
            if key in present:
                text = f"{key} cannot stand beside script: a script brings its own; take out {key} or script"
                yield Fault(key, text, at_key=True)
        return
    for key in REQUIRED_KEYS:
        if key not in present:
            yield Fault("", f"missing key {key} (a recipe has model, data and train, or script)", at_key=True)


def faults(recipe: Recipe) -> Iterator[Fault]:
    """Rules between keys, checked on the sections that are there."""
    if recipe.model is not None:
        yield from _model(recipe.model)
    if recipe.data is not None:
        yield from (Fault(*fault) for fault in data_faults(recipe.data, recipe.eval))
    if recipe.model is not None:
        yield from _divided(recipe.model, recipe.parallel)
    if recipe.model is not None and recipe.data is not None:
        yield from _vocab(recipe.model, recipe.data)
        yield from _tokenizer(recipe.model, recipe.data)
        yield from _context(recipe.model, recipe.data, recipe.parallel)
        yield from _tensor(recipe.model, recipe.data, recipe.parallel)
    if recipe.precision == "fp8":
        yield from _fp8(recipe.parallel)
    yield from optimizer_faults(recipe.optimizer, recipe.train.steps if recipe.train else None)
    yield from _pipeline(recipe.parallel)
    yield from _split_backward(recipe)
    yield from (Fault(*fault) for fault in offload_faults(recipe.offload, recipe.parallel))
    yield from (Fault(*fault) for fault in checkpoint_faults(recipe.checkpoint, recipe.eval, recipe.offload))
    yield from _launch(recipe.launch)
    yield from _hardware(recipe.hardware)
    yield from _container(recipe.slurm)
    if recipe.launch.min_nodes != "all" and recipe.parallel.dp_shard != "auto":
        text = (
            f"launch.min_nodes is {recipe.launch.min_nodes}, but parallel.dp_shard, {recipe.parallel.dp_shard}, fixes "
            "how many ranks there are; take out one of the two"
        )
        yield Fault("launch.min_nodes", text)


def _model(model: ModelSection) -> Iterator[Fault]:
    other = [key for key in ("factory", "hf") if getattr(model, key) is not None]
    if other:
        yield from _foreign_model(model, other)
    elif model.args:
        yield Fault("model.args", "model.args are the arguments of model.factory, which is not given")
    else:
        yield from _llama(model)


def _foreign_model(model: ModelSection, given: list[str]) -> Iterator[Fault]:
    """A model that brings its own shape: keys that would be about Llama's, or about another kind's, are faults."""
    key = given[0]
    allowed = {"factory": {"factory", "args", "vocab", "frozen"}, "hf": {"hf", "frozen"}}[key]
    for name, field in type(model).model_fields.items():
        if name not in allowed and getattr(model, name) != field.get_default(call_default_factory=True):
            yield Fault(
                f"model.{name}", f"model.{name} cannot stand beside model.{key}; take out one of the two"
            )
    if key == "factory" and model.vocab is None:
        yield Fault(
            "model", "missing key model.vocab (the number of token ids that the factory's model has)", True
        )


def _llama(model: ModelSection) -> Iterator[Fault]:
    shape = complete_shape(model.preset, model.sizes)
    if model.preset is None and model.family is None:
        yield Fault(
            "model",
            "model takes a preset, or family: llama with layers, hidden, heads and ffn, or factory, or hf",
            at_key=True,
        )
        return
    missing = [f"model.{key}" for key in ("family", "layers", "hidden", "heads", "ffn") if shape[key] is None]
    if missing:
        yield Fault(
            "model", f"missing key {', '.join(missing)} (without a preset all sizes are wanted)", at_key=True
        )
        return
    hidden, heads, kv_heads = shape["hidden"], shape["heads"], shape["kv_heads"]
    # What to change is a size that was written, not one that the preset brought.
    heads_key = "model.hidden" if model.heads is None else "model.heads"
    kv_key = "model.heads" if model.kv_heads is None else "model.kv_heads"
    if hidden % heads:
        yield Fault(heads_key, f"model.heads is {heads}; it must divide model.hidden, {hidden}")
    elif hidden // heads % 2:
        text = (
            f"model.heads is {heads}; hidden / heads must be even for rotary positions, not {hidden // heads}"
        )
        yield Fault(heads_key, text)
    if heads % kv_heads:
        yield Fault(kv_key, f"model.kv_heads is {kv_heads}; it must divide model.heads, {heads}")


def _divided(model: ModelSection, parallel: ParallelSection) -> Iterator[Fault]:
    """Axes that divide a model's inside need to know it. What tp needs the model declares itself, to the ranks."""
    key = "factory" if model.factory is not None else "hf"
    if getattr(model, key) is None:
        return
    if key == "factory" and parallel.pp > 1 and parallel.pp_layers == "auto":
        yield Fault(
            "parallel.pp",
            f"parallel.pp is {parallel.pp}, and only model.factory knows how many layers there are; say in "
            "parallel.pp_layers how many each stage has",
        )
    for axis in ("cp",) if key == "factory" else ("pp", "cp"):
        size = getattr(parallel, axis)
        if size > 1:
            text = (
                f"parallel.{axis} is {size}, but nothing says how to divide what model.{key} makes so: ZeRO "
                "(dp_shard, dp_replicate) works on any model, tp where a tensor_plan is declared, pp where "
                "model.factory's declares a pipeline_plan; cp on presets and family: llama"
            )
            yield Fault(f"parallel.{axis}", text)


def _vocab(model: ModelSection, data: DataSection) -> Iterator[Fault]:
    if (
        data.text is not None
        and data.tokenizer == "byte"
        and model.vocab is not None
        and model.vocab < BYTE_VOCAB
    ):
        text = f"model.vocab is {model.vocab}; the byte tokenizer has {BYTE_VOCAB} ids (256 bytes and end of document)"
        yield Fault("model.vocab", text)
    if data.factory is not None and model.vocab is None and model.hf is None and data.tokenizer == "byte":
        yield Fault(
            "model", "missing key model.vocab (the number of token ids that data.factory gives)", True
        )


def _tokenizer(model: ModelSection, data: DataSection) -> Iterator[Fault]:
    """The ids that a trained model knows are its tokenizer's: bytes would be other words to it."""
    if (
        (folder := model.hf or model.init) is not None
        and model.factory is None
        and (data.text is not None or data.mixture)
        and "tokenizer" not in data.model_fields_set
    ):
        key = "hf" if model.hf is not None else "init"
        text = f"missing key data.tokenizer (beside model.{key}: {folder}/tokenizer.json, or byte)"
        yield Fault("data", text, at_key=True)


def _fp8(parallel: ParallelSection) -> Iterator[Fault]:
    """What divides or splits the products that fp8 takes over."""
    if parallel.tp > 1:
        yield Fault(
            "precision", f"precision: fp8 does not work with parallel.tp ({parallel.tp}); take bf16, or tp: 1"
        )
    if parallel.pp > 1 and SCHEDULES[parallel.pp_schedule].splits_backward:
        text = f"precision: fp8 does not work with pp_schedule {parallel.pp_schedule}, which splits the backward pass"
        yield Fault("precision", f"{text}; take bf16, or 1f1b")


def _groups(optimizer: OptimizerSection) -> Iterator[Fault]:
    for at, group in enumerate(optimizer.groups):
        key = f"optimizer.groups.{at}"
        if not group.match:
            yield Fault(f"{key}.match", f"optimizer.groups[{at}].match is an empty list; it names parameters")
        if group.lr is not None and group.lr_scale is not None:
            yield Fault(f"{key}.lr", f"optimizer.groups[{at}] takes lr or lr_scale, not both")
        if group.lr is None and group.lr_scale is None and group.weight_decay is None:
            yield Fault(
                key, f"optimizer.groups[{at}] changes nothing; it takes lr or lr_scale, or weight_decay"
            )


def optimizer_faults(optimizer: OptimizerSection, steps: int | None) -> Iterator[Fault]:
    """Of its groups and its schedule, in a run of so many steps where that is known."""
    yield from _groups(optimizer)
    schedule, key = optimizer.schedule, "optimizer.schedule"
    if schedule.min_lr > optimizer.lr:
        yield Fault(
            f"{key}.min_lr", f"{key}.min_lr is {schedule.min_lr:g}, above optimizer.lr, {optimizer.lr:g}"
        )
    decay = 0 if schedule.decay_steps == "auto" else schedule.decay_steps
    if schedule.name == "constant" and decay:
        yield Fault(f"{key}.decay_steps", f"{key}.decay_steps is {decay}, but the schedule is constant")
    if steps is None:
        return
    if schedule.warmup_steps > steps:
        text = f"{key}.warmup_steps is {schedule.warmup_steps}; at most train.steps, {steps}, is possible"
        yield Fault(f"{key}.warmup_steps", text)
    elif schedule.name == "wsd" and schedule.warmup_steps + decay > steps:
        total = f"{schedule.warmup_steps} of warm-up and {decay} of decay"
        yield Fault(f"{key}.decay_steps", f"{key}: {total} are more than train.steps, {steps}")


def _pipeline(parallel: ParallelSection) -> Iterator[Fault]:
    """Keys of a pipeline where there is none; sizes are judged with the world's, in resolving."""
    if parallel.pp > 1:
        return
    for key, written in (
        ("pp_layers", parallel.pp_layers != "auto"),
        ("pp_schedule", parallel.pp_schedule != "1f1b"),
    ):
        if written:
            text = f"parallel.{key} is about a pipeline, but parallel.pp is 1; take it out, or set pp to 2 or more"
            yield Fault(f"parallel.{key}", text)


def _split_backward(recipe: Recipe) -> Iterator[Fault]:
    """What cannot stand beside a schedule that does gradients of inputs and of weights at different times."""
    schedule = recipe.parallel.pp_schedule
    if recipe.parallel.pp == 1 or not SCHEDULES[schedule].splits_backward:
        return
    advice = "take pp_schedule 1f1b or interleaved_1f1b"
    mode = recipe.activation_checkpoint
    if mode not in ("none", "auto"):
        why = {
            "selective": "torch goes backward once only through what is kept selectively",
            "full": "torch computes a layer again for each part and each group of its parameters, five times in all",
        }[mode]
        text = f"activation_checkpoint is {mode}, but {schedule} splits the backward pass, and {why}; {advice}, or none"
        yield Fault("activation_checkpoint", text)
    if recipe.train is not None and recipe.train.compile:
        text = f"train.compile is true, but {schedule} splits the backward pass, and compiled code has one; {advice}"
        yield Fault("train.compile", text)


def _context(model: ModelSection, data: DataSection, parallel: ParallelSection) -> Iterator[Fault]:
    if parallel.cp == 1:
        if parallel.cp_method != "ulysses":
            text = "parallel.cp_method is about ranks that share sequences, but parallel.cp is 1; take it out"
            yield Fault("parallel.cp_method", text)
        return
    shape = complete_shape(model.preset, model.sizes)
    if not shape["heads"]:
        return
    problem = context_problem(
        parallel.cp_method,
        parallel.cp,
        tp=parallel.tp,
        heads=shape["heads"],
        kv_heads=shape["kv_heads"],
        seq_len=data.seq_len,
    )
    if problem is not None:
        yield Fault(*problem)


def _tensor(model: ModelSection, data: DataSection, parallel: ParallelSection) -> Iterator[Fault]:
    shape = complete_shape(model.preset, model.sizes)
    sizes = {key: shape[key] for key in ("heads", "kv_heads", "ffn")}
    if not all(sizes.values()):
        return
    pieces = parallel.cp * (2 if parallel.cp_method == "ring" and parallel.cp > 1 else 1)
    if data.seq_len % pieces:
        return
    problem = indivisible(parallel.tp, llama_units(**sizes, seq_len=data.seq_len, pieces=pieces))
    if problem is not None:
        yield Fault("parallel.tp", f"parallel.tp: {problem}")


def _hardware(hardware: HardwareSection) -> Iterator[Fault]:
    if hardware.memory_gib is not None and hardware.device is None:
        key = "hardware.memory_gib"
        yield Fault(key, f"{key} needs hardware.device: memory of a device, or of a node with device: cpu")


def _container(slurm: SlurmSection) -> Iterator[Fault]:
    container = slurm.container
    if container.image is None and (container.mounts or container.options):
        key = "slurm.container"
        yield Fault(key, f"missing key {key}.image: mounts and options are about a container", at_key=True)
    if container.image is not None and slurm.agents != "srun":
        key = "slurm.container.image"
        yield Fault(key, f"{key} needs slurm.agents: srun, which starts the container; it is {slurm.agents}")


def _launch(launch: LaunchSection) -> Iterator[Fault]:
    lease, heartbeat = launch.lease_s, launch.heartbeat_timeout_s
    if lease <= heartbeat:
        yield Fault(
            "launch.lease_s",
            f"launch.lease_s is {lease:g}; it must be above heartbeat_timeout_s, {heartbeat:g}",
        )
    if launch.sync.source is not None and launch.workdir != ".":
        text = "launch.workdir cannot stand beside launch.sync.source, whose copy ranks run in; take out one of the two"
        yield Fault("launch.workdir", text)
    for index, name in enumerate(launch.env_secret):
        if name in launch.env:
            text = f"{name} is in launch.env too; keep it in one of the two"
            yield Fault(f"launch.env_secret.{index}", text)
