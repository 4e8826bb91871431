"""What is tried, what came of it, and which one is best. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from distperf.recipe.planner.candidates import Candidate
from distperf.recipe.runspec import RunSpec

WARM_STEPS = 2  # at the start of a trial: buffers are made, connections opened
OK, NO_ROOM, REFUSED, FAILED = "ok", "out of memory", "refused", "failed"
UNSAID = ("auto", "none", "null", "1.0", "1f1b")

# What a trial has of its own, whatever the recipe says: a few steps that leave nothing, told to nobody.
OF_TRIALS = {
    "checkpoint.every_steps": "0",
    "checkpoint.save_last": "false",
    "eval.every_steps": "0",
    "launch.max_restarts": "0",
    "optimizer.schedule.name": "constant",
    "optimizer.schedule.warmup_steps": "0",
    "optimizer.schedule.decay_steps": "auto",
    "report.prometheus": "null",
    "report.tensorboard": "false",
    "report.wandb": "null",
    "report.mlflow": "null",
    "report.command": "null",
    "report.webhook": "null",
}


@dataclass(frozen=True)
class Outcome:
    """What came of a trial. verdict: ok | out of memory | refused | failed; why: unless ok."""

    verdict: str
    why: str = ""
    step_s: float | None = None
    tokens_per_s: float | None = None
    peak_bytes: int | None = None
    run: str = ""  # its folder


@dataclass(frozen=True)
class Trial:
    """Keys of the recipe to try, what the plan says of them, and what came of it (None: not tried yet)."""

    keys: dict[str, str]
    planned_bytes: int
    planned_s: float | None
    outcome: Outcome | None = None
    as_is: bool = False  # the recipe as it was

    @property
    def name(self) -> str:
        """In a few words: what is as it is without being said is left out."""
        said = {key.rpartition(".")[2]: value for key, value in self.keys.items() if value not in UNSAID}
        return ", ".join(f"{key} {value}" for key, value in said.items())


def chosen(spec: RunSpec, candidates: Sequence[Candidate], count: int) -> list[Trial]:
    """The recipe as it stands, then the best others; none that does not fit by the plan. `count` in all."""
    own = _keys(spec, spec)
    trials = [_trial(spec, c, own) for c in candidates if c.fits is not False]
    return sorted(trials, key=lambda trial: not trial.as_is)[:count]


def _trial(spec: RunSpec, candidate: Candidate, own: dict[str, str]) -> Trial:
    keys = _keys(spec, candidate.spec)
    step_s = None if candidate.time is None else candidate.time.step_s
    return Trial(keys, candidate.memory.total_bytes, step_s, as_is=keys == own)


def _keys(spec: RunSpec, other: RunSpec) -> dict[str, str]:
    """What makes the recipe of `spec` run as `other` does."""
    parallel = other.parallel
    keys = {
        "parallel.zero": parallel.zero,
        "parallel.tp": parallel.tp,
        "parallel.pp": parallel.pp,
        "parallel.dp_shard": "auto",
        "train.micro_batch": other.train.micro_batch,
        "activation_checkpoint": other.activation_checkpoint,
    }
    keys |= _tier(spec, other)
    if parallel.pp != spec.parallel.pp:
        keys["parallel.pp_layers"] = "auto"
    if parallel.pp == 1 < spec.parallel.pp:
        keys["parallel.pp_schedule"] = "1f1b"  # what it is where there is no pipeline
    return {key: str(value) for key, value in keys.items()}


def _tier(spec: RunSpec, other: RunSpec) -> dict[str, Any]:
    """Keys of `offload`, where there are any; those that are about another tier are taken out."""
    tier = other.offload.optimizer
    if tier == "none" and not spec.offload.path and spec.offload.optimizer == "none":
        return {}
    keys = {"offload.optimizer": tier, "offload.optimizer_fraction": other.offload.optimizer_fraction,
            "offload.params": other.offload.params}  # fmt: skip
    return keys if tier == "nvme" else {**keys, "offload.path": "null"}


def of_metrics(lines: Iterable[Mapping[str, Any]], run: str) -> Outcome:
    """A trial that came to its end, by its lines of metrics.jsonl."""
    steps = list(lines)
    counted = steps[WARM_STEPS:] or steps[-1:]
    if not counted:
        return Outcome(FAILED, "it ended without a step", run=run)
    return Outcome(
        OK,
        step_s=median(line["step_s"] for line in counted),
        tokens_per_s=median(line["tokens_per_s"] for line in counted),
        peak_bytes=max(line["peak_bytes"] for line in steps),
        run=run,
    )


def best(trials: Iterable[Trial]) -> Trial | None:
    """The fastest of those that went well."""
    good = [trial for trial in trials if trial.outcome is not None and trial.outcome.verdict == OK]
    return min(good, key=lambda trial: (trial.outcome and trial.outcome.step_s) or 0.0, default=None)
