"""A loop of one's own on real ranks: the numbers of the plain loop, checkpoints, and what is refused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from own_loops import Curve, Found, by_hand, drive, recipe, taken_over
from own_models import build
from ranks import run_ranks
from train_program import make_spec

import distperf
from distperf.build import build_trainer
from distperf.checkpoint.manifest import list_checkpoints
from distperf.data.loader import Loader
from distperf.data.store import SyntheticStore
from distperf.errors import CheckpointError, DistperfError
from distperf.model.blueprint import blueprint_of
from distperf.parallel.mesh import make_mesh
from distperf.recipe.runspec import FactorySpec, RunSpec

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

CPU = torch.device("cpu")
STEPS = 6
PRECISIONS = {"fp32": (2, 1e-5), "bf16": (3, 5e-3), "fp16": (1, 1e-3)}  # stage, and how near losses are


def loops(folder: str) -> Found:
    apart = 1 + dist.get_rank()
    stages = [(zero, accumulation) for zero in range(4) for accumulation in (1, 3)]
    return Found(
        {each: drive(taken_over(recipe(*each), apart)[0], 0, STEPS) for each in stages},
        [drive(taken_over(recipe(zero, 3))[0], 0, STEPS, passes=2) for zero in range(4)],
        [
            offloaded(2, offload)
            for offload in ({}, {"optimizer": "cpu"}, {"optimizer": "nvme", "path": folder})
        ],
        [offloaded(3, offload) for offload in ({}, {"optimizer": "nvme", "params": "nvme", "path": folder})],
        scheduled(),
    )


def offloaded(zero: int, offload: dict[str, str]) -> Curve:
    engine, _ = taken_over(recipe(zero, offload=offload))
    curve = drive(engine, 0, STEPS)
    engine.close()
    return curve


def scheduled() -> list[float]:
    engine, rule = taken_over(recipe(1))
    schedule = torch.optim.lr_scheduler.LambdaLR(rule, lambda step: step / 4)
    inputs, targets = torch.zeros(2, 2, 6, dtype=torch.int64)
    rates = []
    for _ in range(4):
        engine.backward(torch.nn.functional.cross_entropy(engine(inputs).flatten(0, 1), targets.flatten()))
        rates.append(engine.step().lr)
        rule.step()
        schedule.step()
    engine.backward(engine(inputs).sum())
    with pytest.raises(DistperfError, match=r"1 backward passes wait for engine\.step"):
        engine.backward(engine(inputs).sum())
    return rates


@pytest.fixture(scope="module")
def driven(tmp_path_factory):
    drive_folder = tmp_path_factory.mktemp("drive")
    found = run_ranks(loops, 2, str(drive_folder))
    assert found[0] == found[1]
    assert [path for path in drive_folder.rglob("*") if path.is_file()] == [], "offloaded state is removed"
    return found[0]


def test_every_stage_trains_as_the_plain_loop(driven):
    """Losses and norms are those of a loop by hand, with groups, clip and accumulation; all start as rank 0."""
    for (_zero, accumulation), curve in driven.stages.items():
        expected = by_hand(STEPS, 2, accumulation)
        assert curve.losses == pytest.approx(expected.losses, rel=1e-5)
        assert curve.norms == pytest.approx(expected.norms, rel=1e-5)


def test_an_update_of_fewer_passes_is_their_mean_e09(driven):
    """E09: what is left at the end of an epoch makes an update of its own, divided by what it is."""
    expected = by_hand(STEPS, 2, 2)
    for curve in driven.short:
        assert curve.losses == pytest.approx(expected.losses, rel=1e-5)


def test_offload_changes_no_bit(driven):
    """Optimizer state in host memory or on a drive, and weights and gradients too: the same losses."""
    assert driven.offloaded[1] == driven.offloaded[2] == driven.offloaded[0]
    assert driven.all_offloaded[1] == driven.all_offloaded[0]


def test_a_scheduler_of_torchs_is_heard(driven):
    """The rate that it sets counts at the next step, from its first, which may be 0."""
    assert driven.rates == pytest.approx([0.0, 0.0025, 0.005, 0.0075])


def beside_the_runtime(folder: str) -> dict[str, tuple[list[float], list[float]]]:
    """Losses of the bundled runtime, and of a loop of one's own over its batches, with the recipe's optimizer."""
    model, found = FactorySpec("factory", "own_models:build", {"vocab": 128}, 128), {}
    for precision, (zero, _) in PRECISIONS.items():
        spec = make_spec(
            Path(folder), world=2, zero=zero, accumulation=2, steps=STEPS, model=model, precision=precision
        )
        samples = SyntheticStore(spec.model.vocab, spec.data.seq_len)
        mesh = make_mesh(spec.parallel.mesh, CPU)
        trainer = build_trainer(spec, blueprint_of(model, spec.train.seed), samples, mesh, CPU)
        losses = [trainer.step(step).loss for step in range(1, STEPS + 1)]
        found[precision] = losses, own_loop(spec, Loader(spec.data, samples, spec.train, dist.get_rank(), 2))
    return found


def own_loop(spec: RunSpec, loader: Loader) -> list[float]:
    torch.manual_seed(spec.train.seed)
    rule = spec.optimizer
    said = {
        "precision": spec.precision,
        "parallel": {"zero": spec.parallel.zero},
        "train": {"steps": STEPS, "global_batch": 12, "micro_batch": 3, "grad_clip": 1.0},
        "optimizer": {
            "lr": rule.lr, "betas": list(rule.betas), "schedule": {"warmup_steps": rule.schedule.warmup_steps},
        },
    }  # fmt: skip
    engine = distperf.initialize(build(128), recipe=said)
    losses = []
    for step in range(1, STEPS + 1):
        for micro in range(2):
            inputs, targets = loader.batch(step, micro)
            logits = engine(inputs).float().flatten(0, 1)
            engine.backward(torch.nn.functional.cross_entropy(logits, targets.flatten()))
            result = engine.step()
        losses.append(result.loss)
    return losses


def test_it_trains_as_the_bundled_runtime(tmp_path):
    """The same model, samples and recipe: the same losses, in every precision."""
    for precision, (expected, found) in run_ranks(beside_the_runtime, 2, str(tmp_path))[0].items():
        assert found == pytest.approx(expected, rel=PRECISIONS[precision][1])
        assert found[-1] < found[0]


def saved_and_gone_on(folder: str) -> tuple[str, Curve, list[Curve]]:
    """A checkpoint after step 3 at stage 2, the curve from there, and the curves of stages 0 and 3 that load it."""
    engine, _ = taken_over(recipe(2, 2))
    assert engine.load(folder, missing_ok=True) == 0
    with pytest.raises(CheckpointError, match="no complete checkpoint"):
        engine.load(folder)
    drive(engine, 0, 3)
    path, rest, resumed = engine.save(folder), drive(engine, 3, STEPS), []
    for zero in (0, 3):
        other, _ = taken_over(recipe(zero, 2), seed=9)
        assert other.load(path) == 3
        resumed.append(drive(other, 3, STEPS))
    engine.save(folder, keep=1)
    return str(path), rest, resumed


def test_a_checkpoint_goes_on_in_any_stage(tmp_path):
    """Saved at stage 2 it is whole, and other stages go on from it as if nothing had been; `keep` lets it go."""
    _, rest, resumed = run_ranks(saved_and_gone_on, 2, str(tmp_path))[0]
    for curve in resumed:
        assert curve.losses == pytest.approx(rest.losses, rel=1e-5)
    (left,) = list_checkpoints(tmp_path)
    assert left.step == STEPS
    command = [sys.executable, "-m", "launcher", "ckpt", "verify", str(left.path)]
    assert subprocess.run(command, capture_output=True).returncode == 0
