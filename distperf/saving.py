"""Where a run meets its checkpoints: going on from one, and writing one when it is due."""

from __future__ import annotations

import os

from distperf.checkpoint.load import find_start, load
from distperf.checkpoint.manifest import Manifest, Origin
from distperf.checkpoint.save import CheckpointWriter
from distperf.contract import RESUME_ENV
from distperf.measure.progress import Progress
from distperf.recipe.runspec import CheckpointSpec
from distperf.trainer import Trainer


def resume(checkpoint: CheckpointSpec, origin: Origin, trainer: Trainer, progress: Progress) -> int:
    """Fill model and optimizer from the checkpoint to start from, if any; returns the last finished step."""
    found = find_start(checkpoint.dir, origin, os.environ.get(RESUME_ENV, ""), writes=checkpoint.is_on)
    if found is None:
        return 0
    for problem in found.passed_over:
        progress.event("checkpoint_damaged", f"passed over a damaged checkpoint: {problem}", problem=problem)
    load(found, trainer.engine.state())
    trainer.engine.loaded()
    trainer.engine.optimizer_step = found.manifest.optimizer_step
    trainer.set_loss_scale(found.manifest.loss_scale)
    progress.tokens_seen = found.manifest.tokens
    step, path = found.manifest.step, str(found.path)
    progress.event("resume", f"resumed after step {step} from {path}", step=step, path=path)
    _go_on(trainer, found.manifest, origin, progress)
    return step


def _go_on(trainer: Trainer, manifest: Manifest, origin: Origin, progress: Progress) -> None:
    """Take the samples that follow those of the checkpoint; of other samples, or in another order, the first."""
    if manifest.data["order"] == origin.data["order"]:
        trainer.stream.go_on(manifest.step, manifest.samples)
        return
    trainer.stream.go_on(manifest.step, 0)
    text = "its data, data.seq_len or train.seed are not those of this run, whose samples begin at the first"
    progress.event("other_data", f"checkpoint of step {manifest.step}: {text}", step=manifest.step)


def is_due(step: int, checkpoint: CheckpointSpec, last: int) -> bool:
    """Whether a checkpoint is written after `step`."""
    every = checkpoint.every_steps
    return (every > 0 and step % every == 0) or (checkpoint.save_last and step == last)


def compares(step: int, every: int, saves: bool) -> bool:
    """Whether ranks compare what they must hold equal after `step`: now and then, and before it is saved."""
    return every > 0 and (saves or step % every == 0)


def save(step: int, trainer: Trainer, writer: CheckpointWriter, progress: Progress) -> None:
    """Write a checkpoint and say so. Collective."""
    progress.phase("checkpoint")
    saved = writer.save(
        step,
        trainer.engine.state(),
        optimizer_step=trainer.engine.optimizer_step,
        tokens=progress.tokens_seen,
        samples=trainer.stream.first(step + 1),
        loss_scale=trainer.loss_scale,
    )
    what = (
        f"saved {saved.size_bytes:,} bytes in {saved.seconds:.1f} s" if saved.written else "was there already"
    )
    progress.event(
        "checkpoint",
        f"checkpoint {saved.path}: {what}",
        step=step,
        path=str(saved.path),
        written=saved.written,
        bytes=saved.size_bytes,
        seconds=saved.seconds,
    )
    progress.phase("train")
