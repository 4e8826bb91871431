"""The sections that say what is trained. Every field states its meaning, unit and default, with the reason."""

from __future__ import annotations

from dataclasses import fields
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.fields import FieldInfo

from distperf.recipe.kinds import (
    arguments,
    choice,
    flag,
    number,
    or_auto,
    or_null,
    pair,
    text,
    whole,
)
from distperf.recipe.presets import PRESETS, Preset

FUNCTION = r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*"
SIZES = {field.name for field in fields(Preset)} | {"dropout"}

Auto = Literal["auto"]

Count = Annotated[int, whole(1)]
CountOrNull = Annotated[int | None, or_null(whole(1))]
PositiveOrNull = Annotated[float | None, or_null(number(above=0))]
FlagOrNull = Annotated[bool | None, or_null(flag())]
Path = Annotated[str, text("a path")]
Pattern = Annotated[str, text("a pattern of parameter names")]


class Section(BaseModel):
    """A mapping of the recipe. An empty section is one in which every key has its default."""

    # Built at first use: most commands read no recipe, and the whole is built in one go.
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, defer_build=True)

    @classmethod
    def fields_by_key(cls) -> dict[str, FieldInfo]:
        """The fields by their keys in a recipe, where one may be a word that Python keeps for itself."""
        return {field.alias or name: field for name, field in cls.model_fields.items()}


class ModelSection(Section):
    """What is trained: a `preset`, or `family` with sizes, or a `factory` of your own, or a folder of `hf`.

    Beside a preset, a key overrides that one size.
    """

    preset: Annotated[str | None, or_null(choice(*PRESETS))] = Field(
        default=None, description="A model shape by name. Keys beside it override single sizes."
    )
    family: Annotated[str | None, or_null(choice("llama"))] = Field(
        default=None,
        description="Architecture; wanted where there is no preset, with layers, hidden, heads and ffn.",
    )
    layers: CountOrNull = Field(default=None, description="Number of decoder layers.")
    hidden: CountOrNull = Field(
        default=None, description="Width of the residual stream; a multiple of heads."
    )
    heads: CountOrNull = Field(
        default=None, description="Number of query heads; hidden / heads must be even."
    )
    kv_heads: CountOrNull = Field(
        default=None,
        description="Number of key and value heads; divides heads. Default: heads (or the preset's).",
    )
    ffn: CountOrNull = Field(default=None, description="Inner width of the gated feed-forward layer.")
    vocab: CountOrNull = Field(
        default=None,
        description="Number of token ids. Default: the tokenizer's, so that no id is out of range.",
    )
    tied_embedding: FlagOrNull = Field(
        default=None, description="The head uses the embedding's weights. Default: false (or the preset's)."
    )
    rope_theta: PositiveOrNull = Field(
        default=None,
        description="Base of the rotary frequencies. Default: 10000, as published (or the preset's).",
    )
    norm_eps: PositiveOrNull = Field(
        default=None,
        description="Added to the mean square in RMSNorm. Default: 1e-5, as in Llama 2 (or the preset's).",
    )
    dropout: Annotated[float, number(least=0, below=1)] = Field(
        default=0.0,
        description="Share of elements dropped after the embedding, after attention and after feed-forward, in "
        "training only. Default: none, as in pre-training on fresh data. What is dropped is the same on any mesh.",
    )
    factory: Annotated[str | None, or_null(text("package.module:function", FUNCTION))] = Field(
        default=None,
        description="A function of your own that returns a torch.nn.Module from tokens (batch, positions) to logits "
        "(batch, positions, vocab); imported from launch.workdir or from what is installed. Beside it: args, vocab.",
    )
    args: Annotated[dict[str, Any], arguments()] = Field(
        default_factory=dict,
        description="Keyword arguments of the factory: numbers, true, false, null, text, lists and mappings.",
    )
    hf: Annotated[str | None, or_null(text("a path"))] = Field(
        default=None,
        description="A folder with a config.json of transformers, and its safetensors where training starts from "
        "weights; relative to launch.workdir. No code is taken from it.",
    )
    init: Annotated[str | None, or_null(text("a path"))] = Field(
        default=None,
        description="A folder with safetensors and the config.json of a Llama of this shape, which training starts "
        "from (beside preset or family; what `distperf ckpt export` writes, for one); relative to launch.workdir.",
    )
    frozen: tuple[Pattern, ...] = Field(
        default=(),
        description="Parameters that are not trained, by name: patterns in which * stands for anything, dots too.",
    )

    @property
    def sizes(self) -> dict[str, Any]:
        """What is said of a Llama's shape, but for its vocabulary; None: nothing."""
        return self.model_dump(include=SIZES)


class TrainSection(Section):
    """How long and in which batches."""

    steps: Count = Field(description="Optimizer steps of the whole run.")
    global_batch: Count = Field(description="Sequences of one step over all ranks.")
    micro_batch: Annotated[int | Auto, or_auto(whole(1))] = Field(
        default="auto",
        description="Sequences of one forward on one rank. auto: the largest divisor of a rank's share of the global "
        "batch, up to 8, that leaves a pipeline four micro-batches for each of its ranks; less where, by the plan, "
        "that does not fit into the memory of the hosts. The number of forwards a step (accumulation) follows.",
    )
    seed: Annotated[int, whole(0)] = Field(default=1, description="Seed of weights and of the order of data.")
    grad_clip: PositiveOrNull = Field(
        default=1.0,
        description="Largest global L2 norm of the gradients; null: no clipping. 1.0 is what most large runs used.",
    )
    compile: Annotated[bool, flag()] = Field(
        default=False,
        description="Layers compiled by torch.compile. Off by default: the first step takes a minute or more, and "
        "every node needs a C++ compiler (on GPUs a C compiler and triton).",
    )
    check_replicas_every: Annotated[int, whole(0)] = Field(
        default=100,
        description="Steps between comparisons, to the bit, of weights that several ranks must hold equal; also before "
        "every checkpoint. A difference stops the run and names the rank. 0: never. The default costs next to nothing: "
        "reading the weights once in 100 steps.",
    )


class ScheduleSection(Section):
    """Learning rate over steps: a linear warm-up from 0, then by name."""

    name: Annotated[str, choice("constant", "cosine", "linear", "wsd")] = Field(
        default="cosine",
        description="After warm-up: constant; cosine or linear down to min_lr; wsd: constant, then linear to min_lr.",
    )
    warmup_steps: Annotated[int, whole(0)] = Field(
        default=0,
        description="Steps of warm-up; at most train.steps. Default: none, as it depends on the run's length.",
    )
    decay_steps: Annotated[int | Auto, or_auto(whole(1))] = Field(
        default="auto",
        description="Steps of the decay. auto: all after warm-up (cosine, linear), or a tenth of train.steps (wsd).",
    )
    min_lr: Annotated[float, number(least=0)] = Field(
        default=0.0, description="Learning rate at the end of the decay; at most optimizer.lr."
    )


class GroupSection(Section):
    """Parameters that are updated in another way; at least one of lr, lr_scale and weight_decay."""

    match: tuple[Pattern, ...] = Field(
        description="Patterns of parameter names in which * stands for anything, dots too."
    )
    lr: PositiveOrNull = Field(
        default=None,
        description="Their largest learning rate; the schedule, min_lr too, is scaled by lr / optimizer.lr.",
    )
    lr_scale: PositiveOrNull = Field(
        default=None, description="The same as a factor of optimizer.lr. Default: 1."
    )
    weight_decay: Annotated[float | None, or_null(number(least=0))] = Field(
        default=None,
        description="Their weight decay, of norms and biases too. Default: optimizer.weight_decay, but none for those.",
    )


class OptimizerSection(Section):
    """How parameters are updated."""

    name: Annotated[str, choice("adamw")] = Field(default="adamw", description="AdamW, arXiv:1711.05101.")
    lr: Annotated[float, number(above=0)] = Field(
        default=3e-4,
        description="Largest learning rate. The default suits models of up to a few billion parameters.",
    )
    betas: Annotated[tuple[float, float], pair(number(least=0, below=1))] = Field(
        default=(0.9, 0.95),
        description="Decay of the two moments. The default is the usual one for language models.",
    )
    eps: Annotated[float, number(above=0)] = Field(
        default=1e-8, description="Added to the root of the second moment."
    )
    weight_decay: Annotated[float, number(least=0)] = Field(
        default=0.1,
        description="Decoupled weight decay of matrices and embeddings; norms and biases have none. The default is the "
        "usual one for language models.",
    )
    schedule: ScheduleSection = Field(
        default_factory=ScheduleSection,
        description="Learning rate over steps: warm-up, then a decay by name.",
    )
    groups: tuple[GroupSection, ...] = Field(
        default=(),
        description="Exceptions for some parameters. Of the groups that match a parameter, the first counts.",
    )
