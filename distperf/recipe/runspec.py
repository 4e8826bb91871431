"""RunSpec: a recipe with nothing left open. Identical bytes reach every rank; everything downstream reads only this.

Frozen dataclasses of the standard library, so that a rank can read its orders without the recipe's checkers. A field
carries no default here: defaults belong to the recipe's schema, and resolving fills in all of them.
"""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from dataclasses import dataclass
from typing import Any, TypeVar

from distperf.recipe.mesh import MeshShape


@dataclass(frozen=True)
class ModelSpec:
    """A Llama-family decoder, complete. `vocab` comes from the tokenizer where the recipe gives none."""

    family: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    ffn: int
    vocab: int
    tied_embedding: bool
    rope_theta: float
    norm_eps: float
    dropout: float


@dataclass(frozen=True)
class FactorySpec:
    """A model that a function of the user's makes: `factory` is "package.module:function", called with `args`."""

    family: str  # "factory"
    factory: str
    args: dict[str, Any]
    vocab: int


@dataclass(frozen=True)
class HfSpec:
    """A model by transformers, made from the config.json in a folder; its vocabulary is in there."""

    family: str  # "hf"
    path: str


ModelFamily = ModelSpec | FactorySpec | HfSpec


@dataclass(frozen=True)
class MixtureSpec:
    """One source of a mixture: a folder of shards or a pattern of text files, and how many samples of a round it gives.

    A round is as many samples as the weights of all sources add up to.
    """

    path: str
    weight: int


@dataclass(frozen=True)
class DataSpec:
    """Where tokens come from: exactly one of text (globs), tokens (shard folders), mixture, factory and synthetic."""

    text: tuple[str, ...]
    tokens: tuple[str, ...]
    mixture: tuple[MixtureSpec, ...]
    factory: str | None  # "package.module:function", called with `args`
    args: dict[str, Any]
    synthetic: bool
    tokenizer: str  # "byte", or the path of a tokenizers JSON file
    field: str  # of JSON lines and parquet, what holds the text
    seq_len: int
    boundary: str  # "mask": no loss on the first token of a document | "predict": like any other
    workers: int  # processes of a rank that read ahead
    worker_timeout_s: float  # for one batch
    validation_share: float  # of the samples, the last ones, that are not trained on
    validation: tuple[str, ...]  # or other files (globs where there is text, else shard folders)


@dataclass(frozen=True)
class TrainSpec:
    """The batch equation holds: global_batch == micro_batch * accumulation * data-parallel size."""

    steps: int
    global_batch: int
    micro_batch: int
    accumulation: int
    seed: int
    grad_clip: float | None
    compile: bool
    check_replicas_every: int  # steps; 0: never


@dataclass(frozen=True)
class EvalSpec:
    """every_steps 0: never. `samples`: at most so many of those that are held back; None: all."""

    every_steps: int
    samples: int | None
    micro_batch: int


@dataclass(frozen=True)
class ScheduleSpec:
    """Learning rate over steps. `decay_steps` is the length of the final decay (all after warm-up, but for wsd)."""

    name: str  # constant | cosine | linear | wsd
    warmup_steps: int
    decay_steps: int
    min_lr: float


@dataclass(frozen=True)
class GroupSpec:
    """Parameters whose names match a pattern; lr_scale multiplies the learning rate. weight_decay None: by rule."""

    match: tuple[str, ...]
    lr_scale: float
    weight_decay: float | None


@dataclass(frozen=True)
class OptimizerSpec:
    """AdamW (Loshchilov and Hutter, arXiv:1711.05101). Of the groups that match a name, the first counts."""

    name: str
    lr: float
    betas: tuple[float, float]
    eps: float
    weight_decay: float
    schedule: ScheduleSpec
    groups: tuple[GroupSpec, ...]


@dataclass(frozen=True)
class ParallelSpec:
    """The ZeRO stage, the sizes of the mesh axes, and how those divide what they divide.

    State is divided over dp_shard x cp ranks. `pp_layers`: layers of each pipeline stage in model order, of which a
    rank may hold several; empty without a pipeline.
    """

    zero: int
    pp: int
    dp_replicate: int
    dp_shard: int
    cp: int
    tp: int
    cp_method: str  # ulysses | ring
    pp_schedule: str  # gpipe | 1f1b | interleaved_1f1b | zero_bubble | zbv | dualpipev
    pp_layers: tuple[int, ...]

    @property
    def mesh(self) -> MeshShape:
        """The axes alone."""
        return MeshShape(self.pp, self.dp_replicate, self.dp_shard, self.cp, self.tp)


@dataclass(frozen=True)
class OffloadSpec:
    """Where state rests. `path`: folders on drives, one a drive, relative to where ranks run."""

    optimizer: str  # none | cpu | nvme
    optimizer_fraction: float  # of the state; the rest stays with the weights
    path: tuple[str, ...]
    params: str = "none"  # none | cpu | nvme: weights that a rank owns, and their gradients, with stage 3


@dataclass(frozen=True)
class MemorySpec:
    """Checkpoints in the nodes' memory. every_steps 0: none. `dir`: on every node, absolute."""

    every_steps: int = 0
    copies: int = 1
    dir: str = "/dev/shm"


@dataclass(frozen=True)
class CheckpointSpec:
    """every_steps 0 and save_last false: none is written. `dir` is absolute, one folder seen by all nodes."""

    every_steps: int
    save_last: bool
    keep: int
    dir: str
    keep_every: int = 0
    asynchronous: bool = True
    on_error: str = "continue"  # continue | stop
    keep_best: str | None = None  # loss | eval_loss
    memory: MemorySpec = MemorySpec()

    @property
    def is_on(self) -> bool:
        """Something is written to `dir`."""
        return self.every_steps > 0 or self.save_last


@dataclass(frozen=True)
class RunSpec:
    """One training run for the bundled runtime, resolved."""

    schema: int
    name: str
    run_id: str
    world_size: int
    model: ModelFamily
    init: str | None  # a folder whose weights a Llama starts from
    frozen: tuple[str, ...]  # patterns of parameters that are not trained
    data: DataSpec
    train: TrainSpec
    optimizer: OptimizerSpec
    precision: str  # fp32 | bf16 | fp16 | fp8
    parallel: ParallelSpec
    offload: OffloadSpec
    activation_checkpoint: str  # none | selective | full
    checkpoint: CheckpointSpec
    evaluation: EvalSpec
    reasons: dict[str, str]  # recipe key -> why its "auto" became what it is


RUNSPEC_SCHEMA = 1

T = TypeVar("T")


def to_json(spec: Any) -> str:
    """Canonical JSON of a spec: sorted keys, so equal specs are equal bytes."""
    return json.dumps(dataclasses.asdict(spec), sort_keys=True)


def from_json(cls: type[T], text: str) -> T:
    """Inverse of `to_json`. Raises ValueError naming the missing or unknown field."""
    return typing.cast(T, _build(cls, json.loads(text), cls.__name__))


def _build(hint: Any, value: Any, where: str) -> Any:
    origin = typing.get_origin(hint)
    if dataclasses.is_dataclass(hint):
        return _build_dataclass(typing.cast(type, hint), value, where)
    if origin is tuple:
        inner = typing.get_args(hint)[0]
        return tuple(_build(inner, item, where) for item in value)
    if origin in (typing.Union, types.UnionType):
        if value is None:
            return None
        options = [option for option in typing.get_args(hint) if option is not type(None)]
        return _build(next((o for o in options if _fits(o, value)), options[0]), value, where)
    if hint is float:
        return float(value)
    return value


def _fits(option: Any, value: Any) -> bool:
    """Of several dataclasses, the one that has the fields of `value`."""
    return (
        not dataclasses.is_dataclass(option) or {f.name for f in dataclasses.fields(option)} == value.keys()
    )


def _build_dataclass(cls: type, value: Any, where: str) -> Any:
    hints = typing.get_type_hints(cls)
    missing, unknown = hints.keys() - value.keys(), value.keys() - hints.keys()
    if missing or unknown:
        raise ValueError(f"{where}: missing {sorted(missing)}, unknown {sorted(unknown)}")
    return cls(**{name: _build(hint, value[name], f"{where}.{name}") for name, hint in hints.items()})
