"""Which checkpoint to start from, which to remove, when to refuse. Pure, over what was found on disk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from distperf.checkpoint.manifest import CheckpointInfo
from distperf.errors import CheckpointError, CheckpointMissing

# The fields that give the tensors their shapes; the others (rope_theta, norm_eps) may change between runs.
_SHAPE_FIELDS = ("family", "layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "tied_embedding")


@dataclass(frozen=True)
class Retention:
    """The newest `keep` by step number stay (0: all), and for good each whose step `every` divides (0: none).

    `metric`: the one with the lowest value of it stays too.
    """

    keep: int
    every: int = 0
    metric: str | None = None

    def keeps_always(self, step: int) -> bool:
        """Whether the checkpoint after this step stays however old it gets."""
        return self.every > 0 and step % self.every == 0


@dataclass(frozen=True)
class Start:
    """Where training starts: a checkpoint or, with None, nothing. `passed_over`: newer but damaged ones."""

    checkpoint: CheckpointInfo | None
    passed_over: tuple[CheckpointInfo, ...] = ()

    @property
    def step(self) -> int:
        """The last finished step."""
        return self.checkpoint.step if self.checkpoint else 0


def newest(found: Sequence[CheckpointInfo], where: str) -> Start:
    """The newest complete one of `found`, which is sorted by step.

    Raises:
        CheckpointMissing: there is none; says what is wrong with each that is there.
    """
    for at in reversed(range(len(found))):
        if found[at].complete:
            return Start(found[at], tuple(found[at + 1 :]))
    problems = "".join(f"\n  {info.problem}" for info in found)
    raise CheckpointMissing(f"{where}: no complete checkpoint to start from{problems}")


def choose_start(
    folder: str,
    found: Sequence[CheckpointInfo],
    run_id: str,
    resume: str,
    asked: Sequence[CheckpointInfo],
    attempt: int,
) -> Start:
    """Where this attempt starts.

    Args:
        folder: checkpoint.dir of this run
        found: what `folder` holds
        run_id: this run
        resume: where it was told to start from; "" when it was not told
        asked: what `resume` holds
        attempt: 1, 2, ...; a later one goes on from what this run saved, whatever `resume` says

    Raises:
        CheckpointMissing: no complete one where one was asked for, or all that this run has are damaged.
        CheckpointError: `folder` holds later checkpoints of another run, which this run would run into.
    """
    # A folder without a readable manifest names no run. It counts as ours when the run has others here, or is told of
    # none: rather than begin anew over what may be all that is left, refuse.
    own = [info for info in found if info.by(run_id)]
    if own or not resume:
        own = [info for info in found if info.by(run_id) or info.manifest is None]
    if own and (attempt > 1 or not resume):
        start = newest(own, folder)
    elif resume:
        start = newest(asked, resume)
    else:
        start = Start(None)
    _refuse_foreign(folder, found, run_id, start.step)
    return start


def _refuse_foreign(folder: str, found: Sequence[CheckpointInfo], run_id: str, start_step: int) -> None:
    ahead = [info for info in found if info.manifest and not info.by(run_id) and info.step > start_step]
    if ahead:
        owner = ahead[-1].manifest
        assert owner is not None
        raise CheckpointError(
            f"{folder}: holds checkpoints of run {owner.run_id} up to step {owner.step}, and this run, "
            f"{run_id}, starts after step {start_step}. Nothing was overwritten. Name another checkpoint.dir "
            f"or go on from that run's newest with --resume {folder}"
        )


def refuse_other_model(checkpoint: CheckpointInfo, model: dict[str, Any]) -> None:
    """Raise CheckpointError when the checkpoint's tensors have other shapes than the model's."""
    assert checkpoint.manifest is not None
    saved = checkpoint.manifest.model
    differing = [name for name in _SHAPE_FIELDS if saved.get(name) != model.get(name)]
    if differing:
        raise CheckpointError(
            f"{checkpoint.path}: is of another model: "
            + ", ".join(
                f"{name} {saved.get(name)} there, {model.get(name)} in the recipe" for name in differing
            )
        )


def choose_removals(
    found: Sequence[CheckpointInfo], run_id: str, retention: Retention, just_written: int
) -> list[CheckpointInfo]:
    """Complete checkpoints of this run that need not be kept.

    To be asked once `just_written` is complete: the one a run started from outlives the writing of the next. Those
    of later steps were passed over when it started, as damaged; they neither count nor go.
    """
    own = _finished(found, run_id, just_written)
    surplus = own[: -retention.keep] if retention.keep else []
    stays = best(found, run_id, retention, just_written)
    return [info for info in surplus if not retention.keeps_always(info.step) and info != stays]


def best(
    found: Sequence[CheckpointInfo], run_id: str, retention: Retention, just_written: int
) -> CheckpointInfo | None:
    """The checkpoint of this run with the lowest value of the metric, the earliest of equal ones; None without any."""
    values = [
        (info.manifest.metrics[retention.metric], info.step, info)
        for info in _finished(found, run_id, just_written)
        if info.manifest is not None and retention.metric in info.manifest.metrics
    ]
    return min(values, key=lambda entry: entry[:2])[2] if values else None


def _finished(found: Sequence[CheckpointInfo], run_id: str, just_written: int) -> list[CheckpointInfo]:
    return [info for info in found if info.by(run_id) and info.complete and info.step <= just_written]
