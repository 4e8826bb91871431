"""ckpt ls, show, export, verify, prune: what lies in a folder of checkpoints. No torch."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from distperf.checkpoint.manifest import CheckpointInfo
    from distperf.checkpoint.verify import Damage

ckpt = typer.Typer(
    no_args_is_help=True, help="Look at checkpoints, export them, and let some go.", rich_markup_mode=None
)
AsJson = typer.Option(False, "--json", help="Print JSON on stdout.")
FolderOrRun = typer.Argument(..., metavar="PATH", help="A run's folder, or a folder of checkpoints.")
OneOrFolder = typer.Argument(..., metavar="PATH", help="One checkpoint, or a folder of them (its newest).")
OneOrAll = typer.Argument(..., metavar="PATH", help="One checkpoint, or a folder of them (all), or a run's.")


def register(app: typer.Typer) -> None:
    """Add this group's commands."""
    app.add_typer(ckpt, name="ckpt")


@ckpt.command("ls")
def ls(path: Path = FolderOrRun, as_json: bool = AsJson) -> None:
    """List the checkpoints in a folder, oldest first, damaged ones with what is wrong (sizes, not contents)."""
    from distperf.checkpoint.manifest import best_name, list_checkpoints
    from launcher.words import size

    found, best = list_checkpoints(_folder(path)), best_name(_folder(path))
    if as_json:
        rows = [
            {
                "path": str(c.path),
                "step": c.step,
                "complete": c.complete,
                "bytes": c.size_bytes,
                "problem": c.problem,
                "metrics": c.manifest.metrics if c.manifest else {},
                "best": c.path.name == best,
            }
            for c in found
        ]
        print(json.dumps({"schema": 1, "checkpoints": rows}))
        return
    for checkpoint in found:
        note = _found(checkpoint) + (", the best" if checkpoint.path.name == best else "")
        print(f"step {checkpoint.step:>8}  {size(checkpoint.size_bytes):>10}  {note}  {checkpoint.path}")
    if not found:
        print(f"no checkpoints in {_folder(path)}", file=sys.stderr)


@ckpt.command("show")
def show(path: Path = OneOrFolder, as_json: bool = AsJson) -> None:
    """Show what a checkpoint says about itself."""
    from distperf.checkpoint.manifest import list_checkpoints, read_manifest

    steps = [c.path for c in list_checkpoints(_folder(path)) if c.complete]
    manifest = read_manifest(steps[-1] if steps else path)
    if as_json:
        print(json.dumps(dataclasses.asdict(manifest)))
        return
    fields: dict[str, Any] = dataclasses.asdict(manifest)
    fields["files"] = {name: sums.bytes for name, sums in manifest.files.items()}
    for key, item in fields.items():
        print(f"{key:<16} {json.dumps(item) if isinstance(item, (dict, list, tuple)) else item}")


@ckpt.command("export")
def export(
    path: Path = typer.Argument(
        ..., metavar="CKPT", help="A checkpoint, or a run's folder or one of checkpoints (the newest)."
    ),
    out: Path = typer.Argument(..., metavar="OUT", help="Folder to make."),
    dtype: str | None = typer.Option(
        None, "--dtype", metavar="fp32|bf16", help="Of the weights; default: what the run computed in."
    ),
    hf: Path | None = typer.Option(
        None, "--hf", metavar="DIR", help="Where the run's model.hf folder is now, if it has moved."
    ),
) -> None:
    """Write the model as safetensors with config.json and tokenizer, for transformers (needs the train extra)."""
    options = [*(("--dtype", dtype) if dtype else ()), *(("--hf", str(hf)) if hf else ())]
    command = [sys.executable, "-m", "distperf.export", *options, "--", str(path), str(out)]
    raise typer.Exit(subprocess.run(command, check=False).returncode)


@ckpt.command("verify")
def verify(path: Path = OneOrAll, as_json: bool = AsJson) -> None:
    """Read every byte and name each file that is not as it was written; exit code 1 then."""
    from distperf.checkpoint.verify import verify

    paths = _checkpoints(path)
    found = {each: verify(each) for each in paths}
    if as_json:
        print(json.dumps({"schema": 1, "checkpoints": [_verified(*entry) for entry in found.items()]}))
    else:
        for each, damages in found.items():
            print(f"{each}: {_count(damages)}")
            for damage in damages:
                held = f"; it holds values of {', '.join(damage.tensors)}" if damage.tensors else ""
                print(f"  {damage.problem}{held}")
    if any(found.values()):
        raise typer.Exit(1)


@ckpt.command("prune")
def prune(
    path: Path = FolderOrRun,
    keep: int = typer.Option(
        ...,
        "--keep",
        min=1,
        metavar="N",
        help="Newest checkpoints of each run that stay; what `best` points to does too.",
    ),
    keep_every: int = typer.Option(
        0, "--keep-every", min=0, metavar="M", help="Those whose step M divides stay too."
    ),
    dry_run: bool = typer.Option(False, "--dry-run", help="Name what would go, and remove nothing."),
) -> None:
    """Remove older checkpoints of each run in a folder, once its newest was read and found whole. Prints what goes."""
    from distperf.checkpoint.choose import Retention
    from distperf.checkpoint.prune import prune

    pruned = prune(_folder(path), Retention(keep, keep_every), dry_run=dry_run)
    for info in pruned.surplus:
        print(info.path)
    for run_id, problem in pruned.refused:
        print(f"run {run_id}: nothing was removed, as its newest is damaged: {problem}", file=sys.stderr)
    if pruned.refused:
        raise typer.Exit(1)


def _found(checkpoint: CheckpointInfo) -> str:
    """Whether it is complete, and what its step came to."""
    if not checkpoint.complete or checkpoint.manifest is None:
        return f"damaged: {checkpoint.problem}"
    metrics = checkpoint.manifest.metrics
    return ", ".join(
        ("complete", *(f"{name.replace('_', ' ')} {value:.4f}" for name, value in metrics.items()))
    )


def _folder(path: Path) -> Path:
    inner = path / "checkpoints"
    return inner if inner.is_dir() else path


def _checkpoints(path: Path) -> list[Path]:
    """The checkpoint that a path is, or all in the folder. Raises CheckpointMissing where there is none."""
    from distperf.checkpoint.manifest import MANIFEST, is_step_name, list_checkpoints
    from distperf.errors import CheckpointMissing

    if is_step_name(path.name) or (path / MANIFEST).exists():
        return [path]
    found = [info.path for info in list_checkpoints(_folder(path))]
    if not found:
        raise CheckpointMissing(f"{path}: neither a checkpoint nor a folder that holds some")
    return found


def _count(damages: list[Damage]) -> str:
    return f"{len(damages)} damaged file{'s' * (len(damages) > 1)}" if damages else "whole"


def _verified(path: Path, damages: list[Damage]) -> dict[str, Any]:
    rows = [{"file": d.path.name, "problem": d.problem, "tensors": d.tensors} for d in damages]
    return {"path": str(path), "whole": not damages, "damaged": rows}
