"""Where a run meets the memory of its nodes: every few steps its state is kept there, beside training."""

from __future__ import annotations

from functools import partial

from distperf.checkpoint.background import SaveThread
from distperf.checkpoint.manifest import Origin
from distperf.checkpoint.memory.keep import Keeper, Kept
from distperf.checkpoint.memory.place import Place
from distperf.errors import CheckpointError
from distperf.measure.progress import Progress
from distperf.recipe.runspec import MemorySpec
from distperf.saving import position_of
from distperf.trainer import Trainer


class Remembering:
    """Keeps one generation after the other, and says how the first went, and each that fails after one that did not.

    Whatever goes wrong, training goes on: the disk has its own checkpoints.
    """

    def __init__(
        self, spec: MemorySpec, place: Place | None, origin: Origin, trainer: Trainer, progress: Progress
    ) -> None:
        """Collective. `place`: None where the recipe asks for nothing.

        Raises:
            CheckpointError: on every rank: some node's memory has no room.
        """
        self._spec, self._trainer, self._progress = spec, trainer, progress
        self._keeper = None if place is None else Keeper(place, origin, spec.copies)
        self._running: SaveThread[Kept] | None = None
        self._goes_well: bool | None = None
        if self._keeper is not None:
            self._keeper.check_room(trainer.engine.state())

    def is_due(self, step: int) -> bool:
        """Whether the state after `step` is kept."""
        return self._keeper is not None and step % self._spec.every_steps == 0

    def keep(self, step: int) -> None:
        """Keep the state after `step`. Collective. Waits for the one before."""
        assert self._keeper is not None, "nothing is due where nothing is kept"
        self.settle()
        written = self._keeper.write(
            position_of(step, self._trainer, self._progress, {}), self._trainer.engine.state()
        )
        self._running = SaveThread(step, partial(self._keeper.finish, written))

    def settle(self) -> None:
        """Wait for the running one, if any. Collective."""
        running, self._running = self._running, None
        if running is None:
            return
        if not running.has_ended:
            self._progress.phase("checkpoint")
        try:
            kept = running.result()
        except CheckpointError as error:
            if self._goes_well is not False:
                text = f"{error}; training goes on, and a restart goes back further"
                self._progress.event("memory_failed", text, step=running.step, problem=str(error))
            self._goes_well = False
        else:
            if not self._goes_well:
                self._tell(kept)
            self._goes_well = True
        self._progress.phase("train")

    def _tell(self, kept: Kept) -> None:
        text = (
            f"kept step {kept.step} in memory: {kept.bytes:,} bytes of this rank in {kept.seconds:.2f} s; again every "
            f"{self._spec.every_steps} steps"
        )
        self._progress.event("memory", text, step=kept.step, bytes=kept.bytes, seconds=kept.seconds)
