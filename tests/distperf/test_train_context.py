"""The whole program with sequences shared by ranks, dropout, recomputation and compiled layers, as real ranks."""

from __future__ import annotations

import dataclasses
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from train_program import make_spec, train

from distperf.recipe.runspec import CheckpointSpec, RunSpec

pytestmark = pytest.mark.slow

STEPS = 6


def spec_of(
    folder: Path,
    *,
    dropout: float = 0.1,
    compile: bool = False,
    parallel: dict[str, Any] | None = None,
    **options: Any,
) -> RunSpec:
    spec = make_spec(folder, steps=STEPS, **options)
    return dataclasses.replace(
        spec,
        model=dataclasses.replace(spec.model, dropout=dropout),
        train=dataclasses.replace(spec.train, compile=compile),
        parallel=dataclasses.replace(spec.parallel, **(parallel or {})),
    )


@cache
def one_process(dropout: float) -> list[tuple[float, float]]:
    with TemporaryDirectory() as folder:
        return results(spec_of(Path(folder), dropout=dropout))


def results(spec: RunSpec, **options: Any) -> list[tuple[float, float]]:
    """Loss and gradient norm of each step."""
    return [(record["loss"], record["grad_norm"]) for record in train(spec, **options).ranks[0].of("metrics")]


def close_to(expected: list[tuple[float, float]]) -> list[object]:
    return [pytest.approx(each, rel=1e-5) for each in expected]


@pytest.mark.parametrize(
    "layout",
    [
        {"activation_checkpoint": "selective"},
        {"world": 2, "zero": 2, "accumulation": 3},
        {"world": 4, "zero": 3, "axes": {"cp": 2}, "activation_checkpoint": "full"},
        {
            "world": 4,
            "zero": 1,
            "axes": {"cp": 2, "tp": 2},
            "parallel": {"cp_method": "ring"},
            "activation_checkpoint": "selective",
        },
        {
            "world": 4,
            "zero": 2,
            "accumulation": 4,
            "axes": {"cp": 2, "pp": 2},
            "parallel": {"pp_layers": (1, 1)},
            "activation_checkpoint": "full",
        },
    ],
    ids=["recomputed", "data", "ulysses", "ring and tensor", "pipeline"],
)
def test_what_is_dropped_is_the_same_on_every_mesh(tmp_path: Path, layout: dict[str, Any]) -> None:
    """Losses and gradient norms with dropout are those of one process, also where layers are computed again."""
    assert results(spec_of(tmp_path, **layout)) == close_to(one_process(0.1))


def test_a_resumed_run_drops_what_it_would_have_f13(tmp_path: Path) -> None:
    """F13: from step 3 on to the last bit as if never stopped; no generator's state is saved."""
    checkpoint = CheckpointSpec(every_steps=3, save_last=False, keep=5, dir=str(tmp_path / "checkpoints"))
    spec = spec_of(tmp_path, world=2, zero=2, axes={"tp": 2}, checkpoint=checkpoint)
    whole = results(spec)
    assert results(spec, resume=f"{checkpoint.dir}/step-00000003") == whole[3:]


@pytest.mark.timeout(900)
def test_compiled_layers_train_as_plain_ones(tmp_path: Path) -> None:
    """Within 1e-5, with whole and with gathered weights; equal shapes find the code that is there."""
    cache_dir = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "code"), "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    for zero in (2, 3):
        spec = spec_of(tmp_path, dropout=0.0, world=2, zero=zero, compile=True)
        assert results(spec, timeout_s=400, **cache_dir) == close_to(one_process(0.0))
