"""init, import, schema, data, generate: files on this side, no run."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import typer

data = typer.Typer(
    no_args_is_help=True, help="Text to token shards, and a look at them.", rich_markup_mode=None
)
AsJson = typer.Option(False, "--json", help="Print JSON on stdout.")


def register(app: typer.Typer) -> None:
    """Add this group's commands."""
    app.command("init")(init)
    app.command("import")(import_)
    app.command("schema")(schema)
    app.command("generate")(generate)
    app.add_typer(data, name="data")


def init(
    folder: Path = typer.Argument(
        Path("."), metavar="[FOLDER]", help="Where to write; made if it is not there."
    ),
) -> None:
    """Write a commented recipe and hostfile to start from; never over files that are there."""
    from launcher.starter import write_starter

    for path in write_starter(folder):
        print(path)


def import_(
    config: str | None = typer.Argument(
        None, metavar="[FILE]", help="ds_config.json, or a YAML of `accelerate config`."
    ),
    command: list[str] | None = typer.Argument(
        None, metavar="-- COMMAND...", help="A command line of deepspeed, torchrun or accelerate launch."
    ),
    hostfile: Path | None = typer.Option(None, "--hostfile", metavar="FILE", help="DeepSpeed's hostfile."),
    env: Path | None = typer.Option(
        None, "--env", metavar="FILE", help="A .deepspeed_env: NAME=VALUE lines."
    ),
    ranks: int | None = typer.Option(
        None, "--ranks", min=1, metavar="N", help="World size, for the batch equation."
    ),
    sets: list[str] | None = typer.Option(
        None, "--set", metavar="KEY=VALUE", help="Fill in a key of the recipe."
    ),
) -> None:
    """Turn a configuration or command line of DeepSpeed, Accelerate or torchrun into a recipe (on stdout)."""
    from launcher.importing import Sources, imported
    from launcher.imports import render

    words = list(command or ())
    if config is not None and not config.endswith(
        (".json", ".yaml", ".yml")
    ):  # what stands after -- without a file
        words, config = [config, *words], None
    path = None if config is None else Path(config)
    sources = Sources(path, hostfile, env, ranks, tuple(sets or ()), tuple(words))
    found = imported(sources)
    print(render.recipe(found, ", ".join(sources.names)), end="")
    for line in render.report(found, sources.names):
        print(line, file=sys.stderr)


def schema() -> None:
    """Print the JSON Schema of a recipe."""
    from distperf.recipe.schema import schema_json

    print(json.dumps(schema_json(), indent=1))


def generate(
    path: Path = typer.Argument(
        ..., metavar="CKPT|EXPORT", help="A checkpoint, a run's folder, or a folder of transformers."
    ),
    prompt: list[str] | None = typer.Option(
        None, "--prompt", metavar="TEXT", help="What to go on from; several are done together."
    ),
    max_tokens: int = typer.Option(100, "--max-tokens", min=1, metavar="N", help="New tokens at most."),
    temperature: float = typer.Option(1.0, "--temperature", min=0.0, help="0: always the likeliest token."),
    top_p: float = typer.Option(
        1.0, "--top-p", min=0.0, max=1.0, help="Draw among the likeliest tokens of this much together."
    ),
    seed: int = typer.Option(1, "--seed", min=0, help="Of the draws."),
    nproc: int = typer.Option(
        1, "--nproc", min=1, metavar="N", help="Ranks on this machine that share the model."
    ),
    dtype: str | None = typer.Option(
        None, "--dtype", metavar="fp32|bf16", help="To compute in; default: what the run computed in."
    ),
    tokenizer: str | None = typer.Option(
        None, "--tokenizer", help="byte, or a tokenizers JSON file; default: the one it was trained with."
    ),
    as_json: bool = AsJson,
) -> None:
    """Sample text from a checkpoint or an export, on stdout (needs the train extra)."""
    options = {
        "--max-tokens": max_tokens, "--temperature": temperature, "--top-p": top_p, "--seed": seed, "--nproc": nproc,
        "--dtype": dtype, "--tokenizer": tokenizer,
    }  # fmt: skip
    words = [f"{name}={value}" for name, value in options.items() if value is not None]
    words += [f"--prompt={text}" for text in prompt or ()] + ["--json"] * as_json
    command = [sys.executable, "-m", "distperf.generate", *words, "--", str(path)]
    raise typer.Exit(subprocess.run(command, check=False).returncode)


@data.command("show")
def data_show(
    path: Path = typer.Argument(..., metavar="PATH", help="A folder of token shards."),
    verify: bool = typer.Option(False, "--verify", help="Read every shard and compare its hash first."),
    as_json: bool = AsJson,
) -> None:
    """Show what a folder of token shards says about itself."""
    from distperf.data.manifest import read_manifest, verify_content

    manifest = read_manifest(path)
    if verify:
        verify_content(path, manifest)
    _show(dataclasses.asdict(manifest), as_json)


@data.command("prepare")
def data_prepare(
    text: list[str] = typer.Option(
        ...,
        "--text",
        metavar="GLOB",
        help="Text, .jsonl, .parquet, or these as .gz or .zst; may be given often.",
    ),
    out: Path = typer.Option(..., "--out", metavar="DIR", help="Folder to make."),
    tokenizer: str = typer.Option("byte", "--tokenizer", help="byte, or a tokenizers JSON file."),
    field: str = typer.Option("text", "--field", help="What holds the text of .jsonl and .parquet."),
    workers: int | None = typer.Option(
        None, "--workers", min=1, metavar="N", help="Processes; default: one a CPU, for large text."
    ),
) -> None:
    """Turn text, .jsonl and .parquet into token shards; goes on where it was interrupted (needs the train extra)."""
    globs = [f"--text={pattern}" for pattern in text] + [f"--field={field}"]
    globs += [f"--workers={workers}"] if workers else []
    command = [
        sys.executable,
        "-m",
        "distperf.data.prepare",
        *globs,
        "--tokenizer",
        tokenizer,
        "--out",
        str(out),
    ]
    raise typer.Exit(subprocess.run(command, check=False).returncode)


def _show(value: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(value))
        return
    for key, item in value.items():
        print(f"{key:<16} {json.dumps(item) if isinstance(item, (dict, list, tuple)) else item}")
