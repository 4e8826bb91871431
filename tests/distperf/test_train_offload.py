"""The whole program with all state on drives: evaluations, checkpoints, a resume in memory; the same numbers."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from train_program import TINY, Ranks, data_spec, make_spec, train

from distperf.recipe.runspec import CheckpointSpec, EvalSpec, OffloadSpec, RunSpec

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

STEPS, SAVED = 4, 2


def spec_of(text: Path, folder: Path, offload: OffloadSpec, steps: int = STEPS) -> RunSpec:
    checkpoint = CheckpointSpec(SAVED, False, 9, str(folder / "checkpoints"), asynchronous=offload.path == ())
    return make_spec(
        folder,
        world=2,
        zero=3,
        accumulation=2,
        steps=steps,
        model=dataclasses.replace(TINY, layers=3, vocab=257, dropout=0.2),
        data=data_spec(text=(str(text),), validation_share=0.11, boundary="predict"),
        evaluation=EvalSpec(1, 12, 3),
        precision="bf16",
        activation_checkpoint="selective",
        checkpoint=checkpoint,
        offload=offload,
    )


def told(ranks: Ranks) -> dict[int, tuple[float, float, float]]:
    return {
        each["step"]: (each["loss"], each["grad_norm"], each["eval_loss"])
        for each in ranks.ranks[0].of("metrics")
    }


def test_a_run_on_drives_is_a_run_in_memory(tmp_path):
    """Losses, norms and evaluations are equal; each goes on from the other's checkpoint; the drive is empty then."""
    text, drive = tmp_path / "a.txt", tmp_path / "nvme0"
    text.write_bytes(bytes((i * i // 7) % 251 for i in range(251 * 16)))
    drive.mkdir()
    cache = {"DISTPERF_CACHE": str(tmp_path / "cache")}
    offloads = {
        "memory": OffloadSpec("none", 1.0, ()),
        "drive": OffloadSpec("nvme", 1.0, (str(drive),), "nvme"),
    }
    specs = {name: spec_of(text, tmp_path / name, offload) for name, offload in offloads.items()}
    whole = {name: told(train(spec, **cache)) for name, spec in specs.items()}
    assert whole["drive"] == whole["memory"]
    assert sorted(whole["drive"]) == [1, 2, 3, 4]
    for name, other in (("memory", "drive"), ("drive", "memory")):
        start = str(Path(specs[other].checkpoint.dir) / f"step-{SAVED:08}")
        spec = spec_of(text, tmp_path / f"{name}-from-{other}", offloads[name])
        found = told(train(spec, resume=start, **cache))
        assert found == {step: values for step, values in whole["memory"].items() if step > SAVED}
    assert list(drive.iterdir()) == []
