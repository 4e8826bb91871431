"""Checkpoints that a person lets go: which of a folder, and that what stays is whole. No torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from distperf.checkpoint.choose import Retention, choose_removals
from distperf.checkpoint.manifest import CheckpointInfo, best_name, list_checkpoints
from distperf.checkpoint.removal import remove
from distperf.checkpoint.verify import verify

PRUNING = 0  # stands for the attempt in names of folders being removed: attempts count from 1


@dataclass(frozen=True)
class Pruned:
    """What goes of a folder, and the runs of which nothing goes because their newest is damaged: run id, why."""

    surplus: tuple[CheckpointInfo, ...]
    refused: tuple[tuple[str, str], ...]


def choose(folder: Path, retention: Retention, damage: Callable[[Path], str | None]) -> Pruned:
    """What each run in the folder need not keep, where the newest that it keeps is whole: `damage` says.

    What `best` points to stays.
    """
    best = best_name(folder)
    surplus: list[CheckpointInfo] = []
    refused: list[tuple[str, str]] = []
    for run_id, own in _by_run(list_checkpoints(folder)):
        removable = choose_removals(own, run_id, retention, just_written=own[-1].step)
        goes = [info for info in removable if info.path.name != best]
        if goes and (problem := damage(own[-1].path)) is not None:
            refused.append((run_id, problem))
        else:
            surplus += goes
    return Pruned(tuple(surplus), tuple(refused))


def prune(folder: Path, retention: Retention, *, dry_run: bool = False) -> Pruned:
    """Remove what `choose` names; `dry_run`: only name it.

    Raises:
        OSError: a checkpoint cannot be removed.

    Cost: reads the newest checkpoint of each run that has some to let go.
    """
    pruned = choose(folder, retention, _first_damage)
    for info in pruned.surplus if not dry_run else ():
        assert info.manifest is not None
        remove(info, info.manifest.run_id, PRUNING)
    return pruned


def _first_damage(path: Path) -> str | None:
    found = verify(path)
    return found[0].problem if found else None


def _by_run(found: Sequence[CheckpointInfo]) -> list[tuple[str, list[CheckpointInfo]]]:
    """Complete checkpoints of each run, sorted by step."""
    runs = [(info.manifest.run_id, info) for info in found if info.complete and info.manifest]
    runs.sort(key=lambda entry: (entry[0], entry[1].step))
    return [(run, [info for _, info in entries]) for run, entries in groupby(runs, key=lambda e: e[0])]
