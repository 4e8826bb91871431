"""What `tune` prints in the end, and its JSON. Pure."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from launcher import words
from launcher.tune.run import Tuned
from launcher.tune.trials import OK, Trial

SCHEMA = 1


def as_json(tuned: Tuned) -> dict[str, Any]:
    """All trials, and the best one's place among them."""
    best = tuned.best
    return {
        "schema": SCHEMA,
        "folder": str(tuned.ledger.folder),
        "trials": [asdict(trial) for trial in tuned.trials],
        "best": None if best is None else tuned.trials.index(best),
        "recipe": None if best is None else str(tuned.ledger.best),
    }


def as_text(tuned: Tuned) -> list[str]:
    """A row a trial, those that went well first, the fastest first."""
    rows = [["", "keys", "s a step", "planned", "tokens/s", "peak (rank 0)", "planned", ""]]
    numbered = sorted(enumerate(tuned.trials, start=1), key=lambda pair: _rank(pair[1]))
    rows += [[str(number), *_row(trial)] for number, trial in numbered]
    text = words.table(rows)
    if tuned.best is None:
        return [*text, "no trial went well"]
    return [*text, f"the best is in {tuned.ledger.best}: distperf launch {tuned.ledger.best}"]


def _rank(trial: Trial) -> tuple[bool, float]:
    seconds = trial.outcome.step_s if trial.outcome else None
    return seconds is None, seconds or 0.0


def _row(trial: Trial) -> list[str]:
    found = trial.outcome
    planned_s = "?" if trial.planned_s is None else f"{trial.planned_s:.3f}"
    planned = words.size(trial.planned_bytes)
    if found is None:
        return [trial.name, "", planned_s, "", "", planned, "not tried"]
    if found.verdict != OK:
        return [trial.name, "", planned_s, "", "", planned, found.verdict]
    return [
        trial.name,
        f"{found.step_s:.3f}",
        planned_s,
        f"{found.tokens_per_s:,.0f}",
        words.size(found.peak_bytes or 0),
        planned,
        "",
    ]
