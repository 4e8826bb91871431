"""The folder of a tuning: which trials there are and what came of those that are done, so that it can be gone on with.

DIR/tune.json     what is tried for which recipe and hosts, and every outcome
DIR/runs/         the trials' own run folders
DIR/trials.log    what their launches said
DIR/best.yaml     the recipe with the fastest trial's keys
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from distperf.recipe.runspec import from_json
from launcher.errors import RunFolderError, UsageError
from launcher.rundir import write_atomic
from launcher.tune.trials import Outcome, Trial

SCHEMA = 1


@dataclass(frozen=True)
class Ledger:
    """Paths, and what the trials are of: `subject` is a hash of the recipe, the hosts and the number of steps."""

    folder: Path
    subject: str

    @classmethod
    def of(cls, folder: Path, recipe: str, hosts: Sequence[str], steps: int) -> Ledger:
        """recipe: its text, merged and checked. hosts: with their slots."""
        text = json.dumps([recipe, list(hosts), steps])
        return cls(folder, hashlib.sha256(text.encode()).hexdigest()[:16])

    @property
    def runs(self) -> Path:
        """The trials' run folders are in here."""
        return self.folder / "runs"

    @property
    def log(self) -> Path:
        """What launches said."""
        return self.folder / "trials.log"

    @property
    def best(self) -> Path:
        """The winner."""
        return self.folder / "best.yaml"

    def resumed(self, trials: Sequence[Trial], count: int) -> list[Trial]:
        """The trials that the folder knows, with their outcomes, and others up to `count`. What is chosen may have
        changed meanwhile, with what is known of the hosts; what was begun with stays.

        Raises UsageError where the folder is about something else.
        """
        path = self.folder / "tune.json"
        try:
            value = json.loads(path.read_text())
            subject, known = value["subject"], [_trial(one) for one in value["trials"]]
        except FileNotFoundError:
            return list(trials[:count])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UsageError(f"{path} cannot be read ({error}): name another folder with --dir") from None
        if subject != self.subject:
            raise UsageError(
                f"{path} is about another recipe, other hosts or another number of steps: name another folder with "
                "--dir, or remove this one"
            )
        tried = [trial.keys for trial in known]
        fresh = [trial for trial in trials if trial.keys not in tried]
        return [*known, *fresh[: max(0, count - len(known))]]

    def write(self, trials: Sequence[Trial]) -> None:
        """Whole or not at all. Raises RunFolderError."""
        try:
            self.runs.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunFolderError(f"cannot make {self.runs}: {error.strerror}") from None
        value = {"schema": SCHEMA, "subject": self.subject, "trials": [asdict(trial) for trial in trials]}
        write_atomic(self.folder / "tune.json", json.dumps(value, indent=1) + "\n")


def _trial(value: dict[str, Any]) -> Trial:
    outcome = value["outcome"] and from_json(Outcome, json.dumps(value["outcome"]))
    keys = {str(key): str(text) for key, text in value["keys"].items()}
    return Trial(keys, value["planned_bytes"], value["planned_s"], outcome, value["as_is"])
