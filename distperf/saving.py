"""Where a run meets its checkpoints: going on from one, and writing one when it is due."""

from __future__ import annotations

import os
import time
from functools import partial

from distperf.checkpoint.background import HostCopy, SaveThread, Snapshot
from distperf.checkpoint.choose import Retention
from distperf.checkpoint.load import load_newest
from distperf.checkpoint.manifest import Manifest, Origin, Position
from distperf.checkpoint.memory.place import Place
from distperf.checkpoint.memory.recall import Recall
from distperf.checkpoint.save import CheckpointWriter, Saved
from distperf.checkpoint.shards import State
from distperf.contract import RESUME_ENV
from distperf.errors import CheckpointError, CheckpointSuperseded
from distperf.measure.progress import Progress
from distperf.model.init import Fill
from distperf.recipe.runspec import CheckpointSpec
from distperf.trainer import Trainer


def resume(
    checkpoint: CheckpointSpec,
    origin: Origin,
    trainer: Trainer,
    fill: Fill,
    progress: Progress,
    memory: Place | None = None,
) -> int:
    """Fill model and optimizer from the checkpoint to start from, or with initial values: the last finished step.

    `memory`: where checkpoints in memory are, if the run has some. Those that training does not start from go.
    """
    told = os.environ.get(RESUME_ENV, "")
    recall = None if memory is None else Recall(memory)
    for problem in recall.lacking if recall is not None else ():
        progress.event(
            "memory_lacking", f"not all of a checkpoint in memory is left: {problem}", problem=problem
        )
    found = load_newest(
        checkpoint.dir, origin, told, trainer.engine.state, writes=checkpoint.is_on, recall=recall
    )
    if recall is not None:
        recall.forget_others(found.manifest.step if found is not None and found.in_memory else None)
    if found is None:
        if recall is not None and origin.attempt > 1:
            text = "no checkpoint is in the nodes' memory or on disk: training begins anew"
            progress.event("memory_gone", text)
        trainer.engine.fill(fill)
        return 0
    for problem in found.passed_over:
        progress.event("checkpoint_damaged", f"passed over a damaged checkpoint: {problem}", problem=problem)
    for problem in found.mended:
        progress.event("memory_mended", f"{problem}; taken from another node", problem=problem)
    trainer.engine.loaded()
    trainer.engine.optimizer_step = found.manifest.optimizer_step
    trainer.set_loss_scale(found.manifest.loss_scale)
    progress.tokens_seen = found.manifest.tokens
    step, path = found.manifest.step, str(found.path)
    text = (
        f"resumed from memory, step {step}" if found.in_memory else f"resumed after step {step} from {path}"
    )
    progress.event("resume", text, step=step, path=path, memory=found.in_memory)
    _go_on(trainer, found.manifest, origin, progress)
    return step


def _go_on(trainer: Trainer, manifest: Manifest, origin: Origin, progress: Progress) -> None:
    """Take the samples that follow those of the checkpoint; of other samples, or in another order, the first."""
    if manifest.data["order"] == origin.data["order"]:
        trainer.stream.go_on(manifest.step, manifest.samples, manifest.data_state)
        if trainer.stream.is_sequential and manifest.samples and manifest.data_state is None:
            text = (
                f"data.factory's dataset said nothing of its state: the {manifest.samples:,} samples that were trained "
                "on are read again and passed over. That counts as a first step, which may take 600 s unless "
                "launch.stall_timeout_s is more; state_dict and load_state_dict would save it"
            )
            progress.event("data_replay", text, step=manifest.step, samples=manifest.samples)
        return
    trainer.stream.go_on(manifest.step, 0)
    text = "its data, data.seq_len or train.seed are not those of this run, whose samples begin at the first"
    progress.event("other_data", f"checkpoint of step {manifest.step}: {text}", step=manifest.step)


def position_of(step: int, trainer: Trainer, progress: Progress, metrics: dict[str, float]) -> Position:
    """Where training is after `step`; `metrics`: what that step came to."""
    return Position(
        step,
        optimizer_step=trainer.engine.optimizer_step,
        tokens=progress.tokens_seen,
        samples=trainer.stream.first(step + 1),
        loss_scale=trainer.loss_scale,
        data_state=trainer.stream.state,
        metrics=metrics,
    )


def is_due(step: int, checkpoint: CheckpointSpec, last: int) -> bool:
    """Whether a checkpoint is written after `step`."""
    every = checkpoint.every_steps
    return (every > 0 and step % every == 0) or (checkpoint.save_last and step == last)


def compares(step: int, every: int, saves: bool) -> bool:
    """Whether ranks compare what they must hold equal after `step`: now and then, and before it is saved."""
    return every > 0 and (saves or step % every == 0)


class Checkpoints:
    """Writes a run's checkpoints, beside training or while it waits, one at a time, and says how each went.

    What one rank finds of a save, all ranks find (`agreed`), but not after the same step. So nothing collective follows
    from it until all have waited for the save (`settle`): before the next one, and at the end.
    """

    def __init__(self, spec: CheckpointSpec, origin: Origin, progress: Progress) -> None:
        """Collective."""
        self._spec, self._progress = spec, progress
        retention = Retention(spec.keep, spec.keep_every, spec.keep_best)
        self._writer = CheckpointWriter(spec.dir, origin, retention) if spec.is_on else None
        self._copy = HostCopy()
        self._running: SaveThread[Saved] | None = None
        self._blocked_s = 0.0  # what the running save has kept training waiting

    def must_stop(self) -> bool:
        """A save has failed after which the run shall not go on; the last step's all-reduce tells the others."""
        return self._running is not None and self._running.failed and self._spec.on_error == "stop"

    def save(self, step: int, trainer: Trainer, metrics: dict[str, float]) -> None:
        """Write a checkpoint. Collective. Waits for the one before, and for this one where it is not asynchronous.

        `metrics`: by which one may be the best.

        Raises:
            CheckpointError: it, or the one before, could not be written, and the recipe has the run stop for that; or
                a later attempt of this run has begun.
        """
        assert self._writer is not None, "nothing is due where checkpoints are off"
        began = time.monotonic()
        self.settle()
        self._progress.phase("checkpoint")
        position = position_of(step, trainer, self._progress, metrics)
        state: State = trainer.engine.state()
        if self._spec.asynchronous:
            self._save_beside(step, position, state, trainer)
            self._blocked_s = time.monotonic() - began
        else:
            self._running = SaveThread(step, partial(self._writer.save, position, state))
            self.settle()
        self._progress.phase("train")

    def _save_beside(self, step: int, position: Position, state: State, trainer: Trainer) -> None:
        """The copy as well, up to the next update."""
        writer, snapshot = self._writer, Snapshot(self._copy, state)
        assert writer is not None

        def release() -> None:
            self._blocked_s += snapshot.wait()

        trainer.hold(release)
        self._running = SaveThread(step, lambda: writer.save(position, snapshot.take()))

    def look(self) -> None:
        """Say how the running save went, if it is over; what shall stop the run waits for `settle`."""
        if self._running is not None and self._running.has_ended and not self.must_stop():
            self.settle()

    def settle(self, last: int | None = None) -> None:
        """Wait for the running save, if any. `last`: the step that the run ends after.

        Raises:
            CheckpointError: as `save`; or the last step's could not be written, without which the run is not done.
        """
        running, self._running = self._running, None
        if running is None:
            return
        if not running.has_ended:
            self._progress.phase("checkpoint")
        try:
            self._tell(running.result())
        except CheckpointError as error:
            fatal = self._spec.on_error == "stop" or running.step == last
            if fatal or isinstance(error, CheckpointSuperseded):
                raise
            step = running.step
            text = f"{error}; training goes on, and the checkpoints before are as they were"
            self._progress.event("checkpoint_failed", text, step=step, problem=str(error))
        self._progress.phase("train")

    def _tell(self, saved: Saved) -> None:
        what = "was there already"
        if saved.written:
            what = f"saved {saved.size_bytes:,} bytes in {saved.seconds:.1f} s"
            if self._spec.asynchronous:
                what += f", training stopped for {self._blocked_s:.2f} s"
        if saved.best:
            what += f"; the best by {self._spec.keep_best} so far"
        self._progress.event(
            "checkpoint",
            f"checkpoint {saved.path}: {what}",
            step=saved.step,
            path=str(saved.path),
            written=saved.written,
            best=saved.best,
            bytes=saved.size_bytes,
            seconds=saved.seconds,
            blocked_s=self._blocked_s if self._spec.asynchronous else saved.seconds,
        )
