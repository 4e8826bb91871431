"""A DeepSpeed configuration as a recipe: which key becomes which, with DeepSpeed's own defaults said out loud.

Where the two have other defaults (clipping, betas, weight decay, ZeRO stage), DeepSpeed's are written out, so that the
recipe trains as the configuration did. Keys that become nothing are in deepspeed_keys.py.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from distperf.errors import BatchError
from launcher.imports import deepspeed_keys
from launcher.imports.deepspeed_batch import Batch, solve
from launcher.imports.findings import ASKED, Fate, Finding, Imported, Line, flat

AUTO = "auto"
BATCH = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
ADAM = {"adam", "adamw", "fusedadam", "cpuadam", "deepspeedcpuadam", "torchadam"}
SCHEDULES = {"WarmupLR": "constant", "WarmupDecayLR": "linear", "WarmupCosineLR": "cosine"}
SECTIONS = (
    "tensorboard",
    "wandb",
    "comet",
    "csv_monitor",
    "flops_profiler",
    "comms_logger",
    "autotuning",
    "elasticity",
)
KNOWN_WHEREVER_ENABLED = (
    *SECTIONS,
    "amp",
    "torch_autocast",
    "progressive_layer_drop",
    "eigenvalue",
    "hybrid_engine",
)


def from_deepspeed(config: Mapping[str, Any], filled: Mapping[str, Any], ranks: int | None) -> Imported:
    """The recipe that `config` comes to.

    filled: values for keys that say `auto`, as the Hugging Face Trainer would fill them in, by dotted key.
    ranks: the world size, where it is known; the batch equation may need it. Raises BatchError.
    """
    sheet = _Sheet(flat(config), filled)
    _parallel(sheet, ranks)
    _batch(sheet, ranks)
    _offload(sheet)
    _precision(sheet)
    _optimizer(sheet)
    _schedule(sheet)
    _rest(sheet)
    _monitors(sheet)
    _left_over(sheet)
    return Imported(tuple(sheet.lines), tuple(sheet.findings.values()), notes=tuple(sheet.notes))


@dataclass
class _Sheet:
    """The configuration being read: every key that is looked at gets its finding."""

    keys: dict[str, Any]
    filled: Mapping[str, Any]
    lines: list[Line] = field(default_factory=list)
    findings: dict[str, Finding] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def value(self, key: str, default: Any = None) -> Any:
        """What the key says; for `auto` what the Trainer fills in, or AUTO. Text that is a number is one."""
        found = self.keys.get(key, default)
        if found == AUTO:
            return self.filled.get(key, AUTO)
        return _number(found) if isinstance(found, str) else found

    def carried(self, line: str, value: Any, *sources: str, why: str = "") -> None:
        """A line of the recipe, made of these keys."""
        present = [key for key in sources if key in self.keys]
        if line not in {said.key for said in self.lines}:
            self.lines.append(Line(line, value, why or ", ".join(present) or "DeepSpeed's default"))
        for key in present:
            asked = value is ASKED
            note = f"{line}: to be given" if asked else f"{line}: {shown(value)}"
            if self.keys[key] == AUTO and key in self.filled:
                note += " (auto, from the command line)"
            self.tell(key, Fate.ASKED if asked else Fate.CARRIED, note)

    def tell(self, key: str, fate: Fate, note: str) -> None:
        """The finding of a key, where the configuration has it; the first one stays."""
        if key in self.keys:
            self.findings.setdefault(key, Finding(key, self.keys[key], fate, note))


def _number(text: str) -> Any:
    try:
        return float(text) if any(char in text for char in ".eE") else int(text)
    except ValueError:
        return text


def shown(value: Any) -> str:
    """A value as YAML has it on one line."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(shown, value))}]"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _parallel(sheet: _Sheet, ranks: int | None) -> None:
    stage = sheet.value("zero_optimization.stage", sheet.value("zero_optimization", 0))
    stage = int(stage) if isinstance(stage, bool | int) else ASKED  # a switch, long ago: stage 1
    sheet.carried("parallel.zero", stage, "zero_optimization.stage", "zero_optimization")
    for line, *keys in (
        ("parallel.tp", "tensor_parallel.autotp_size", "tensor_parallel.tp_size"),
        ("parallel.pp", "pipeline.stages"),
        ("parallel.cp", "sequence_parallel_size"),
    ):
        if key := next((key for key in keys if isinstance(sheet.value(key), int)), None):
            sheet.carried(line, max(1, sheet.value(key)), key)
    shard = sheet.value("zero_optimization.mics_shard_size")
    if isinstance(shard, int) and shard > 0:
        sheet.carried("parallel.dp_shard", shard, "zero_optimization.mics_shard_size")
        copies = max(1, ranks // shard) if ranks else ASKED
        sheet.carried("parallel.dp_replicate", copies, why="ranks / mics_shard_size")
    sheet.tell("zero_optimization.mics_shard_size", Fate.NEEDLESS, deepspeed_keys.SWITCHED_OFF)


def _offload(sheet: _Sheet) -> None:
    """Optimizer state, and with stage 3 parameters. Of what cannot be carried over, the tables have the word."""
    section = "zero_optimization.offload_optimizer"
    stage = next(line.value for line in sheet.lines if line.key == "parallel.zero")
    tier = sheet.value(f"{section}.device")
    if tier is None and sheet.value("zero_optimization.cpu_offload") is True:
        tier = "cpu"
    if stage not in (0, 1, 2, 3) or tier not in ("cpu", "nvme"):
        return
    sheet.carried("offload.optimizer", tier, f"{section}.device", "zero_optimization.cpu_offload")
    if tier == "nvme":
        sheet.carried("offload.path", sheet.value(f"{section}.nvme_path", ASKED), f"{section}.nvme_path")
    share = sheet.value(f"{section}.ratio")
    if isinstance(share, int | float) and 0 < share <= 1:
        sheet.carried("offload.optimizer_fraction", float(share), f"{section}.ratio")
    for key in [key for key in sheet.keys if key.startswith(f"{section}.")]:
        sheet.tell(key, Fate.NEEDLESS, deepspeed_keys.BUFFERS)
    if stage == 3:
        _offload_parameters(sheet, tier)


def _offload_parameters(sheet: _Sheet, optimizer: str) -> None:
    """No nearer than optimizer state is: on drives only beside state on drives, whose folders it then shares."""
    section = "zero_optimization.offload_param"
    tier = sheet.value(f"{section}.device")
    if tier not in ("cpu", optimizer):
        return
    sheet.carried("offload.params", tier, f"{section}.device")
    for key in [key for key in sheet.keys if key.startswith(f"{section}.")]:
        sheet.tell(key, Fate.NEEDLESS, deepspeed_keys.BUFFERS)


def _batch(sheet: _Sheet, ranks: int | None) -> None:
    """Source: DeepSpeed's train_batch_size = micro batch x accumulation x data-parallel ranks."""
    axes = [line.value for line in sheet.lines if line.key in ("parallel.tp", "parallel.pp", "parallel.cp")]
    replica = 1
    for size in axes:
        replica *= size
    if ranks is not None and ranks % replica:
        raise BatchError(f"{ranks} ranks are no multiple of tp x pp x cp = {replica}")
    train, micro, accumulation = (
        found if isinstance(found := sheet.value(key), int) else None for key in BATCH
    )
    replicas = None if ranks is None else ranks // replica
    batch = solve(Batch(train, micro, accumulation), replicas)
    sheet.carried("train.global_batch", batch.train or ASKED, "train_batch_size", why=batch.equation)
    sheet.carried(
        "train.micro_batch", batch.micro or AUTO, "train_micro_batch_size_per_gpu", why=batch.micro_why
    )
    key = "gradient_accumulation_steps"
    if batch.train is None:
        sheet.tell(key, Fate.ASKED, "part of train.global_batch: give --ranks")
    elif batch.train and sheet.keys.get(key) == AUTO:
        sheet.tell(key, Fate.NEEDLESS, "follows from global and micro-batch and the ranks there are")
    else:
        sheet.tell(key, Fate.CARRIED, f"train.global_batch: {batch.train}, of which accumulation follows")


def _precision(sheet: _Sheet) -> None:
    half = {"bf16": ("bf16.enabled", "bfloat16.enabled"), "fp16": ("fp16.enabled",)}
    states = {name: [sheet.value(key) for key in keys if key in sheet.keys] for name, keys in half.items()}
    on = [name for name, values in states.items() if True in values]
    open_ = [name for name, values in states.items() if AUTO in values]
    every = [key for keys in half.values() for key in keys]
    if on:
        sheet.carried("precision", on[0], *half[on[0]])
    elif open_:
        sheet.carried(
            "precision", ASKED, *(key for name in open_ for key in half[name]), why="auto: bf16, fp16 or fp32"
        )
    else:
        sheet.carried("precision", "fp32", *every)
    for key in every:
        sheet.tell(key, Fate.NEEDLESS, deepspeed_keys.SWITCHED_OFF)
    scale = sheet.value("fp16.loss_scale", 0)
    static = "loss scaling is dynamic; it finds its scale by itself"
    sheet.tell("fp16.loss_scale", Fate.NEEDLESS if scale in (0, AUTO) else Fate.INSTEAD, static)


def _optimizer(sheet: _Sheet) -> None:
    kind, params = sheet.value("optimizer.type"), "optimizer.params."
    lr = sheet.value("scheduler.params.warmup_max_lr", AUTO)
    if kind is None:
        sheet.notes.append(
            "no optimizer in it: the script makes its own; give optimizer.lr, betas and weight_decay"
        )
        return
    mine = str(kind).lower() in ADAM and sheet.value(params + "adam_w_mode", True) is True
    if mine:
        sheet.carried("optimizer.name", "adamw", "optimizer.type", params + "adam_w_mode")
    else:
        other = f"adamw in place of {kind}: its learning rate is another one (optimizer.lr)"
        sheet.tell("optimizer.type", Fate.INSTEAD, other)
        sheet.tell(params + "adam_w_mode", Fate.INSTEAD, "weight decay is decoupled, as in AdamW")
        for key in [key for key in sheet.keys if key.startswith(params)]:
            sheet.tell(key, Fate.INSTEAD, f"about {kind}")
        sheet.carried("optimizer.lr", ASKED, why=f"adamw in place of {kind}")
        return
    lr = sheet.value(params + "lr", 1e-3) if lr == AUTO else lr
    sheet.carried(
        "optimizer.lr", ASKED if lr == AUTO else lr, params + "lr", "scheduler.params.warmup_max_lr"
    )
    betas = sheet.value(params + "betas", [0.9, 0.999])
    sheet.carried("optimizer.betas", ASKED if betas == AUTO else list(betas), params + "betas")
    for name, default in (("eps", 1e-8), ("weight_decay", 0.0)):
        value = sheet.value(params + name, default)
        sheet.carried(f"optimizer.{name}", ASKED if value == AUTO else value, params + name)


def _schedule(sheet: _Sheet) -> None:
    kind, params, line = sheet.value("scheduler.type"), "scheduler.params.", "optimizer.schedule."
    mine = SCHEDULES.get(str(kind))
    if kind is not None and mine is None:
        for key in [key for key in sheet.keys if key.startswith("scheduler.")]:
            sheet.tell(
                key, Fate.INSTEAD, f"no {kind}: constant, cosine, linear or wsd (optimizer.schedule.name)"
            )
        sheet.carried(line + "name", ASKED, why=f"in place of {kind}")
        return
    sheet.carried(
        line + "name", mine or "constant", "scheduler.type", why="" if kind else "no scheduler in it"
    )
    if kind is None:
        return
    warmup, steps = sheet.value(params + "warmup_num_steps", 1000), sheet.value(params + "total_num_steps")
    sheet.carried(line + "warmup_steps", ASKED if warmup == AUTO else warmup, params + "warmup_num_steps")
    if kind != "WarmupLR":
        sheet.carried("train.steps", steps if isinstance(steps, int) else ASKED, params + "total_num_steps")
    if kind == "WarmupCosineLR":
        lr = next((ln.value for ln in sheet.lines if ln.key == "optimizer.lr"), None)
        ratio = sheet.value(params + "cos_min_ratio", 1e-4)
        least = float(f"{ratio * lr:.9g}") if isinstance(lr, float | int) and ratio != AUTO else ASKED
        sheet.carried(line + "min_lr", least, params + "cos_min_ratio", why="cos_min_ratio x optimizer.lr")
    sheet.tell(params + "warmup_max_lr", Fate.CARRIED, "optimizer.lr: the largest one")
    sheet.tell(params + "last_batch_iteration", Fate.NEEDLESS, "a resumed run knows its step")
    linear = "warm-up is linear, from 0"
    for name in ("warmup_min_lr", "warmup_min_ratio"):
        sheet.tell(
            params + name, Fate.NEEDLESS if sheet.value(params + name) in (0, AUTO) else Fate.INSTEAD, linear
        )
    shape = sheet.value(params + "warmup_type", "log")
    sheet.tell(params + "warmup_type", Fate.NEEDLESS if shape == "linear" else Fate.INSTEAD, linear)
    if params + "warmup_type" not in sheet.keys:
        sheet.notes.append(f"{kind} warms up by the logarithm unless told otherwise; here {linear}")


def _rest(sheet: _Sheet) -> None:
    clip = sheet.value("gradient_clipping", 0)
    sheet.carried("train.grad_clip", ASKED if clip == AUTO else clip or None, "gradient_clipping")
    activation = [key for key in sheet.keys if key.startswith("activation_checkpointing.")]
    if sheet.value("activation_checkpointing.partition_activations") or sheet.value(
        "pipeline.activation_checkpoint_interval"
    ):
        keys = ("activation_checkpointing.partition_activations", "pipeline.activation_checkpoint_interval")
        sheet.carried("activation_checkpoint", "full", *keys)
    elif activation:
        sheet.notes.append(
            "its activation_checkpointing only tunes what the model itself asks for; does it? Then say `full`"
        )
    sheet.tell("activation_checkpointing.partition_activations", Fate.NEEDLESS, deepspeed_keys.SWITCHED_OFF)
    sheet.tell("pipeline.activation_checkpoint_interval", Fate.NEEDLESS, deepspeed_keys.SWITCHED_OFF)
    compiled = sheet.value("compile.enabled")
    if compiled is not None:
        sheet.carried("train.compile", bool(compiled), "compile.enabled")
    if isinstance(seed := sheet.filled.get("seed"), int):
        sheet.carried("train.seed", seed, why="--seed")
    if isinstance(steps := sheet.filled.get("max_steps"), int):
        sheet.carried("train.steps", steps, why="--max_steps")


def _monitors(sheet: _Sheet) -> None:
    if sheet.value("tensorboard.enabled") is True:
        sheet.carried("report.tensorboard", True, "tensorboard.enabled")
    if sheet.value("wandb.enabled") is True:
        project = str(sheet.value("wandb.project", "deepspeed"))
        sheet.carried("report.wandb.project", project, "wandb.project", "wandb.enabled")
        if (team := sheet.value("wandb.team")) is not None:
            sheet.carried("report.wandb.entity", str(team), "wandb.team")


def _left_over(sheet: _Sheet) -> None:
    """What stands in the tables, what belongs to a section that is off, and what nobody knows."""
    for key, value in sheet.keys.items():
        section = key.partition(".")[0]
        off = sheet.keys.get(f"{section}.enabled") is False or _is_off(key, value)
        if off and (section in KNOWN_WHEREVER_ENABLED or _entry(deepspeed_keys.INSTEAD, key)):
            sheet.tell(key, Fate.NEEDLESS, deepspeed_keys.SWITCHED_OFF)
        elif note := _entry(deepspeed_keys.NEEDLESS, key):
            sheet.tell(key, Fate.NEEDLESS, note)
        elif note := _entry(deepspeed_keys.INSTEAD, key):
            sheet.tell(key, Fate.INSTEAD, note)
        else:
            known = [
                *deepspeed_keys.NEEDLESS,
                *deepspeed_keys.INSTEAD,
                *BATCH,
                "gradient_clipping",
                "zero_optimization.stage",
            ]
            near = difflib.get_close_matches(key, known, n=1, cutoff=0.8)
            hint = f"did you mean {near[0]}? " if near else ""
            sheet.tell(key, Fate.UNKNOWN, f"{hint}not a key of DeepSpeed's that is known here")


def _is_off(key: str, value: Any) -> bool:
    """A device of none, a switch on false, an empty section: nothing was asked for."""
    return value is False or value == {} or (key.endswith(".device") and value == "none")


def _entry(table: Mapping[str, str], key: str) -> str | None:
    """The note of a key or of the nearest section around it."""
    while key:
        if key in table:
            return table[key]
        key = key.rpartition(".")[0]
    return None
