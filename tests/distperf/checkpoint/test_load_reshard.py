"""What was saved on one mesh is read on another: the next steps have the losses that they would have had."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from parity import CPU, Row
from ranks import run_ranks

from distperf.build import build_trainer
from distperf.checkpoint.choose import Retention
from distperf.checkpoint.load import load_newest
from distperf.checkpoint.manifest import Origin, Position, read_manifest
from distperf.checkpoint.read import Stored
from distperf.checkpoint.save import CheckpointWriter
from distperf.data.opening import open_store
from distperf.model.blueprint import blueprint_of
from distperf.parallel.mesh import Mesh, make_mesh
from distperf.parallel.pieces import OwnedTensor, Piece
from distperf.recipe.mesh import MeshShape
from distperf.recipe.runspec import RunSpec, from_json, to_json
from distperf.trainer import Trainer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

SAVED_AFTER, STEPS = 2, 4
ORIGIN = Origin("run-a", "n", 1, 1, {}, "fp32", 0, {})

# Saved by 4 ranks: every axis and every ZeRO stage, tied weights on both ends of a pipeline, a vocabulary that tp does
# not divide.
SAVED = {
    "zero1": "parallel.zero=1",
    "zero3": "parallel.zero=3",
    "tp": "parallel.tp=2 parallel.zero=2",
    "pp": "parallel.pp=2 parallel.zero=3",
    "zbv": "parallel.pp=2 parallel.pp_schedule=zbv parallel.zero=1",
    "cp": "parallel.cp=2 parallel.zero=3 parallel.tp=2",
    "replicas": "parallel.dp_replicate=2 parallel.zero=2",
    "tp4": "parallel.tp=4 model.kv_heads=4",
}
SAME = "model.tied_embedding=true model.vocab=97 model.kv_heads=4"

# Read by 4, 2 and 1 ranks.
READ = {
    4: [
        ("zero3", SAVED["tp"]), ("tp", SAVED["pp"]), ("pp", SAVED["zero3"]), ("zbv", SAVED["cp"]),
        ("cp", SAVED["zbv"]), ("replicas", SAVED["tp4"]), ("tp4", SAVED["zero1"]), ("zero1", SAVED["replicas"]),
        ("pp", "parallel.pp=2 parallel.pp_layers=[1,3] parallel.tp=2"), ("tp", "parallel.pp=4"),
    ],
    2: [
        ("zero3", "parallel.zero=2"), ("tp4", "parallel.tp=2"), ("pp", "parallel.zero=3"), ("cp", "parallel.pp=2"),
        ("zbv", "parallel.cp=2 parallel.cp_method=ring parallel.zero=1"),
    ],
    1: [("zero3", ""), ("tp", ""), ("zbv", "")],
}  # fmt: skip


def spec_of(folder: Path, world: int, sets: str, checkpoints: str) -> str:
    spec = Row(world, tuple(f"{SAME} {sets}".split())).spec(folder)
    kept = dataclasses.replace(spec.checkpoint, dir=str(folder / checkpoints))
    return to_json(dataclasses.replace(spec, checkpoint=kept))


def build(text: str, meshes: dict[MeshShape, Mesh]) -> tuple[RunSpec, Trainer]:
    spec = from_json(RunSpec, text)
    shape = spec.parallel.mesh
    if shape not in meshes:
        meshes[shape] = make_mesh(shape, CPU)
    blueprint = blueprint_of(spec.model, spec.train.seed)
    return spec, build_trainer(spec, blueprint, open_store(spec.data, blueprint.vocab), meshes[shape], CPU)


def origin(spec: RunSpec) -> Origin:
    model = dataclasses.asdict(spec.model)
    return Origin(spec.run_id, spec.name, 1, spec.world_size, model, spec.precision, spec.parallel.zero, {})


def save_and_go_on(specs: list[str]) -> list[list[float]]:
    """Saves each after step 2; the losses of steps 3 and 4."""
    meshes: dict[MeshShape, Mesh] = {}
    return [_save_and_go_on(*build(text, meshes)) for text in specs]


def _save_and_go_on(spec: RunSpec, trainer: Trainer) -> list[float]:
    for step in range(1, SAVED_AFTER + 1):
        trainer.step(step)
    writer = CheckpointWriter(spec.checkpoint.dir, origin(spec), Retention(1))
    writer.save(Position(SAVED_AFTER, trainer.engine.optimizer_step, 0, 0), trainer.engine.state())
    return [trainer.step(step).loss for step in range(SAVED_AFTER + 1, STEPS + 1)]


def read_and_go_on(specs: list[str]) -> list[list[float]]:
    meshes: dict[MeshShape, Mesh] = {}
    return [_read_and_go_on(*build(text, meshes)) for text in specs]


def _read_and_go_on(spec: RunSpec, trainer: Trainer) -> list[float]:
    found = load_newest(spec.checkpoint.dir, origin(spec), "", trainer.engine.state)
    assert found is not None
    trainer.engine.loaded()
    trainer.engine.optimizer_step = found.manifest.optimizer_step
    return [trainer.step(step).loss for step in range(SAVED_AFTER + 1, STEPS + 1)]


def save_and_read(saved: list[str], read: list[str]) -> tuple[list[list[float]], list[list[float]]]:
    return save_and_go_on(saved), read_and_go_on(read)


@pytest.fixture(scope="module")
def by_four(tmp_path_factory) -> tuple[Path, dict[str, list[float]], list[list[float]]]:
    """A folder with a checkpoint of each mesh, the losses of the steps after it, and those that 4 ranks go on with."""
    folder = tmp_path_factory.mktemp("meshes")
    specs = [spec_of(folder, 4, sets, name) for name, sets in SAVED.items()]
    (wanted, found), *others = run_ranks(save_and_read, 4, specs, to_read(folder, 4), timeout_s=240)
    assert all(other == (wanted, found) for other in others), "all ranks know the same numbers"
    return folder, dict(zip(SAVED, wanted, strict=True)), found


def to_read(folder: Path, world: int) -> list[str]:
    return [spec_of(folder, world, sets, name) for name, sets in READ[world]]


@pytest.mark.parametrize("world", [4, 2, 1])
def test_any_mesh_goes_on_from_any_other_g04(by_four, world):
    """G04: 18 pairs of meshes: weights and optimizer state are the same, so the next two losses are."""
    folder, wanted, found = by_four
    if world < 4:
        found = run_ranks(read_and_go_on, world, to_read(folder, world))[0]
    for (name, sets), losses in zip(READ[world], found, strict=True):
        assert losses == pytest.approx(wanted[name], rel=1e-5), (name, sets)


ROWS, COLUMNS = 4096, 4096


@pytest.fixture
def alone():
    """This process is the only rank."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_a_rank_that_needs_a_part_of_a_large_piece_holds_little_more(tmp_path, alone):
    """A quarter of the columns of a matrix that lies on disk as one piece of 64 MiB: beyond the rank's own 16 MiB it
    takes a buffer and a block, 20 MiB.
    """
    matrix = torch.arange(ROWS * COLUMNS, dtype=torch.float32).view(ROWS, COLUMNS)
    whole = {"model.a": OwnedTensor((ROWS, COLUMNS), torch.float32, (Piece((0, 0), matrix),))}
    path = CheckpointWriter(str(tmp_path), ORIGIN, Retention(1)).save(Position(1, 1, 0, 0), whole).path
    wanted = matrix[:, 2048:3072].clone()
    target = torch.full_like(wanted, -1.0)
    stored = Stored(path, read_manifest(path))
    del matrix, whole
    Path("/proc/self/clear_refs").write_text("5")  # the peak is counted from here on
    before = status_bytes("VmRSS")
    stored.fill({"model.a": OwnedTensor((ROWS, COLUMNS), torch.float32, (Piece((0, 2048), target),))})
    assert torch.equal(target, wanted)
    assert status_bytes("VmHWM") - before < 28 << 20


def status_bytes(key: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(key)).split()[1]) << 10
