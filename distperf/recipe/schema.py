"""The whole recipe: what is trained (sections.py), how it is launched (launching.py, scheduling.py), its schema."""

from __future__ import annotations

import typing
from typing import Annotated, Any

from pydantic import Field, PrivateAttr
from pydantic.fields import FieldInfo

from distperf.recipe.checkpointing import CheckpointSection
from distperf.recipe.dividing import OffloadSection, ParallelSection
from distperf.recipe.feeding import DataSection, EvalSection
from distperf.recipe.kinds import choice, or_null, text
from distperf.recipe.launching import LaunchSection, ScriptSection
from distperf.recipe.machines import HardwareSection
from distperf.recipe.reporting import ReportSection, RunSection
from distperf.recipe.scheduling import SlurmSection
from distperf.recipe.sections import (
    ModelSection,
    OptimizerSection,
    Section,
    TrainSection,
)

SCHEMA = 1
NAME_PATTERN = r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}"

Name = Annotated[
    str, text("letters, digits, . _ - (at most 100, first a letter, a digit or _)", NAME_PATTERN)
]


class Recipe(Section):
    """A recipe that was checked. Equal recipes say the same, wherever they were written."""

    name: Name = Field(
        description="Name of the run, the beginning of its run id. Default: the recipe's file name."
    )
    extends: Annotated[str | None, or_null(text("a path"))] = Field(
        default=None,
        description="Another recipe that this one is laid over; relative to this file. Mappings are merged key by key, "
        "lists and scalars replaced.",
    )
    model: ModelSection | None = Field(default=None, description="What is trained; required but for script.")
    data: DataSection | None = Field(
        default=None, description="Where tokens come from; required but for script."
    )
    train: TrainSection | None = Field(
        default=None, description="How long and in which batches; required but for script."
    )
    optimizer: OptimizerSection = Field(
        default_factory=OptimizerSection, description="How parameters are updated."
    )
    precision: Annotated[str, choice("fp32", "bf16", "fp16", "fp8")] = Field(
        default="bf16",
        description="bf16: forward and backward in bfloat16, with fp32 master weights and reductions (half the memory "
        "and traffic of activations); fp16: likewise in float16, with dynamic loss scaling, for devices without bf16; "
        "fp32: everything in fp32; fp8: as bf16, with the matrix products of the layers in fp8, on devices with fp8 "
        "units (NVIDIA from compute capability 8.9; not with tp, nor with schedules that split the backward pass).",
    )
    parallel: ParallelSection = Field(
        default_factory=ParallelSection, description="How the model's state is divided over ranks."
    )
    offload: OffloadSection = Field(
        default_factory=OffloadSection,
        description="What of the model's state rests outside of the devices' memory.",
    )
    activation_checkpoint: Annotated[str, choice("none", "selective", "full", "auto")] = Field(
        default="none",
        description="What layers keep between forward and backward pass. none: all that the backward pass needs (the "
        "default, fastest); selective: outputs of matrix products and attention, the rest is computed again; full: "
        "each layer's input only, for about a third more arithmetic; auto: the first of these that fits, by the plan, "
        "into the memory of the hosts (none where that is not known).",
    )
    checkpoint: CheckpointSection = Field(
        default_factory=CheckpointSection, description="When the run is saved, and what is kept."
    )
    eval: EvalSection = Field(
        default_factory=EvalSection, description="The loss on samples that are held back from training."
    )
    launch: LaunchSection = Field(
        default_factory=LaunchSection, description="How ranks are started and watched."
    )
    slurm: SlurmSection = Field(
        default_factory=SlurmSection,
        description="What a job of SLURM's asks for, and how a run behaves inside one.",
    )
    run: RunSection = Field(default_factory=RunSection, description="The run's folder.")
    report: ReportSection = Field(default_factory=ReportSection, description="Who else hears of the run.")
    hardware: HardwareSection = Field(
        default_factory=HardwareSection,
        description="What ranks run on, for the planner, where it cannot find out or shall not believe it.",
    )
    script: ScriptSection | None = Field(
        default=None, description="A script of your own, in place of everything that says what is trained."
    )

    _places: dict[str, str] = PrivateAttr(default_factory=dict)

    def place(self, key: str) -> str:
        """Where the value of the dotted `key`, or the section around it, was written: `file:line:column`, or ''."""
        while key and key not in self._places:
            key = key.rpartition(".")[0]
        return self._places.get(key, "")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Recipe) and dict(self) == dict(other)


def section_of(field: FieldInfo) -> type[Section] | None:
    """The section that a field holds, or None where it holds a value or a list."""
    return None if typing.get_origin(field.annotation) is tuple else _section_in(field)


def listed_section(field: FieldInfo) -> type[Section] | None:
    """The section that each item of a field's list is, or None where it is no such list."""
    return _section_in(field) if typing.get_origin(field.annotation) is tuple else None


def _section_in(field: FieldInfo) -> type[Section] | None:
    options = (field.annotation, *typing.get_args(field.annotation))
    classes = (option for option in options if isinstance(option, type) and typing.get_origin(option) is None)
    return next((option for option in classes if issubclass(option, Section)), None)


def known_keys(section: type[Section] = Recipe, path: str = "") -> dict[str, FieldInfo]:
    """Dotted path -> field, of every key that a recipe may have, in the order of the reference page."""
    keys: dict[str, FieldInfo] = {}
    for name, field in section.fields_by_key().items():
        keys[path + name] = field
        if inner := section_of(field) or listed_section(field):
            keys.update(known_keys(inner, f"{path}{name}."))
    return keys


SHAPE = {
    "$ref",
    "allOf",
    "type",
    "items",
    "additionalProperties",
    "patternProperties",
    "minItems",
    "maxItems",
}


def schema_json() -> dict[str, Any]:
    """JSON Schema of a recipe. No key is required in it, as any may come from the recipe that is extended.

    Where a section, a list or a mapping is wanted, null (a key with nothing after it) says nothing, and is allowed.
    """
    schema = Recipe.model_json_schema()
    for section in (schema, *schema["$defs"].values()):
        section.pop("required", None)
        for name, field in section["properties"].items():
            nullable = {key: field.pop(key) for key in SHAPE & field.keys()}
            if nullable.keys() & {"$ref", "allOf"} or nullable.get("type") in ("array", "object"):
                nullable = {"anyOf": [nullable, {"type": "null"}]}
            section["properties"][name] = {**nullable, **field}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "schema": SCHEMA, **schema}
