"""The sections that say what a run reads: training data, and what is held back for evaluation."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from distperf.recipe.kinds import (
    arguments,
    choice,
    flag,
    number,
    or_auto,
    or_list,
    or_null,
    text,
    whole,
)
from distperf.recipe.sections import FUNCTION, Auto, Count, Path, Section

All = Literal["all"]
Function = Annotated[str | None, or_null(text("package.module:function", FUNCTION))]
Glob = Annotated[str, text("a path or a pattern of paths")]
Held = Annotated[
    float | tuple[str, ...] | None,
    or_null(or_list(number(above=0, below=1), text("a path or a pattern of paths"))),
]


class MixtureSection(Section):
    """One source of a mixture."""

    path: Glob = Field(
        description="A folder of token shards, or a pattern of text files as in data.text; relative to launch.workdir."
    )
    weight: Annotated[float, number(above=0)] = Field(
        description="Its share of the samples is its weight over the sum of all weights; at least 1 in 65,536."
    )


class DataSection(Section):
    """Where tokens come from: exactly one of text, tokens, mixture, factory and synthetic.

    null drops one that `extends` brought.
    """

    text: tuple[Glob, ...] | None = Field(
        default=None,
        description="Patterns of files, relative to launch.workdir: UTF-8 text, one document each; JSON lines (.jsonl) "
        "and .parquet, one a line or row; any of them packed as .gz or .zst.",
    )
    tokens: tuple[Path, ...] | None = Field(
        default=None, description="Folders of token shards with their manifests; relative to launch.workdir."
    )
    mixture: tuple[MixtureSection, ...] = Field(
        default=(),
        description="Several sources, mixed sample by sample by their weights, each shuffled and gone through again "
        "and again by itself. All made by one tokenizer.",
    )
    factory: Function = Field(
        default=None,
        description="A function of your own that returns a torch Dataset or IterableDataset, whose items are "
        "seq_len + 1 token ids, or a pair of seq_len inputs and seq_len targets; imported from launch.workdir or from "
        "what is installed. Beside it: args, seq_len, tokenizer, workers, and validation as a share.",
    )
    args: Annotated[dict[str, Any], arguments()] = Field(
        default_factory=dict,
        description="Keyword arguments of the factory: numbers, true, false, null, text, lists and mappings.",
    )
    synthetic: Annotated[bool, flag()] = Field(
        default=False, description="Random tokens, made on the spot: for measuring speed, not for learning."
    )
    tokenizer: Path = Field(
        default="byte",
        description="byte (256 byte values and an end-of-document id, so nothing to download: the default), or the "
        "path of a tokenizers JSON file; relative to launch.workdir.",
    )
    field: Path = Field(
        default="text",
        description="Of JSON lines and parquet: the key or column that holds a document's text.",
    )
    seq_len: Count = Field(
        default=1024, description="Tokens of a sequence. The default suits small models on any device."
    )
    validation: Held = Field(
        default=None,
        description="What is held back from training, for eval: a share of the samples (the last ones, of each "
        "source), or a list of other files (patterns beside text, folders of shards beside tokens); relative to "
        "launch.workdir.",
    )
    boundary: Annotated[str, choice("mask", "predict")] = Field(
        default="mask",
        description="Documents are packed one after the other. mask: the first token of a document carries no loss, so "
        "that the end of another is not trained to predict it (the default); predict: it is predicted like any other. "
        "Of the loss only: in both, attention sees what stands before in the sample, other documents too.",
    )
    workers: Annotated[int, whole(0, 256)] = Field(
        default=0,
        description="Processes of each rank that read batches ahead. Samples and resume are the same with any number. "
        "0 (the default): the rank reads them itself, which is fast enough for token shards in memory. More are for "
        "slow disks and for factories that compute; an IterableDataset has one.",
    )
    worker_timeout_s: Annotated[float, number(above=0)] = Field(
        default=25.0,
        description="When a worker owes a batch for so many seconds, the run fails and says what the worker was doing; "
        "its first batch may take 600 s. The default is below the 30 s after which a run may be called stalled.",
    )


class EvalSection(Section):
    """The loss on samples that are held back from training (data.validation)."""

    every_steps: Annotated[int, whole(0)] = Field(
        default=0, description="Steps between evaluations; one after the last step too. 0: none at all."
    )
    batches: Annotated[int | All, or_auto(whole(1), "all")] = Field(
        default=10,
        description="How much is evaluated: as many samples as so many steps train on, always the same ones, each "
        "once; all: every sample that is held back. The default suits a curve to look at.",
    )
    micro_batch: Annotated[int | Auto, or_auto(whole(1))] = Field(
        default="auto",
        description="Sequences of one forward on one rank; any number, without a backward pass. auto: "
        "train.micro_batch.",
    )
