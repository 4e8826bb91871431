"""Training with state in tiers is training without, to the last bit: one start of two ranks for all of it."""

from __future__ import annotations

import dataclasses
import zlib
from pathlib import Path
from typing import Any

import parity
import pytest
import torch
import torch.distributed as dist
from late_copies import Late
from ranks import run_ranks
from torch import Tensor, nn

from distperf.build import build_trainer
from distperf.checkpoint.choose import Retention
from distperf.checkpoint.load import find_start, load
from distperf.checkpoint.manifest import Origin, Position
from distperf.checkpoint.save import CheckpointWriter
from distperf.data.opening import open_store
from distperf.errors import OffloadError
from distperf.model.blueprint import blueprint_of
from distperf.offload.keeping import NO_OFFLOAD, Offload, check_drives, rank_files
from distperf.optim.clip import clip_factor, global_norm_sq
from distperf.parallel.engine import Engine, build_engine
from distperf.parallel.mesh import Mesh, make_mesh
from distperf.recipe.mesh import MeshShape
from distperf.recipe.runspec import OffloadSpec, OptimizerSpec, RunSpec, ScheduleSpec, from_json, to_json
from distperf.trainer import Trainer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

CPU = torch.device("cpu")
STEPS = 4
FIRST_SCALE = 2.0**21
SMALLER = ["model.layers=2", "train.global_batch=8"]
ROWS = [
    "parallel.zero=0",
    "parallel.zero=1 precision=bf16",
    "parallel.zero=2 train.micro_batch=4",
    "parallel.zero=2 precision=bf16",
    "parallel.zero=1 precision=fp16",
    "parallel.zero=2 precision=fp16 parallel.dp_replicate=2",
    "parallel.zero=2 precision=bf16 parallel.tp=2",
    "parallel.zero=1 precision=bf16 parallel.pp=2 model.tied_embedding=true",
    "parallel.zero=2 parallel.pp=2 parallel.pp_schedule=zbv model.layers=4",
    "parallel.zero=3 train.micro_batch=2",
    "parallel.zero=3 precision=bf16",
    "parallel.zero=3 precision=fp16 activation_checkpoint=full",
]
TIERS = ("cpu", "nvme", "half on two drives")
WEIGHTS = ("all on the host", "all on a drive", "all, half the moments, on two drives")  # with stage 3


def offload_of(tier: str, folder: str) -> OffloadSpec:
    one, two = (folder,), (folder, f"{folder}/second")
    return {
        "none": OffloadSpec("none", 1.0, ()),
        "cpu": OffloadSpec("cpu", 1.0, ()),
        "nvme": OffloadSpec("nvme", 1.0, one),
        "half on two drives": OffloadSpec("nvme", 0.5, two),
        "all on the host": OffloadSpec("cpu", 1.0, (), "cpu"),
        "all on a drive": OffloadSpec("nvme", 1.0, one, "nvme"),
        "all, half the moments, on two drives": OffloadSpec("nvme", 0.5, two, "nvme"),
    }[tier]


def tiers_of(row: str) -> tuple[str, ...]:
    """The first is what the others are compared with: the same engine, all in memory."""
    return ("none", *TIERS, *(WEIGHTS if "zero=3" in row else ()))


class Net(nn.Module):
    """Parameters of one element and of many, one of them frozen; spans end inside and between them."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(37, 12)
        self.scale = nn.Parameter(torch.empty(1))
        self.up = nn.Linear(12, 41)
        self.down = nn.Linear(41, 12)
        self.frozen = nn.Parameter(torch.empty(5), requires_grad=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens) * self.scale + self.frozen.sum()
        return (x + self.down(torch.tanh(self.up(x)))) @ self.embed.weight.t()


def fill(fqn: str, shape, start: int, stop: int) -> Tensor:
    return torch.sin(torch.arange(start, stop) * 0.7 + len(fqn)) * 0.3


OPTIMIZER = OptimizerSpec("adamw", 1e-2, (0.9, 0.95), 1e-8, 0.1, ScheduleSpec("constant", 0, 0, 0.0), ())


def engine_of(zero: int, precision: str, offload: Offload) -> Engine:
    with torch.device("meta"):
        net = Net()
    return build_engine([net], zero=zero, precision=precision, mesh=make_mesh(MeshShape(dp_shard=2), CPU), device=CPU,
                        optimizer=OPTIMIZER, accumulation=2, fill=fill, offload=offload)  # fmt: skip


def trained(engine: Engine) -> list[float]:
    """Norms of three steps of two micro-batches, the second of which is skipped; then all that this rank owns."""
    found = []
    for step in range(4):
        for micro in range(2):
            seed = 100 * step + 10 * micro + dist.get_rank()
            tokens = torch.randint(37, (4, 6), generator=torch.Generator().manual_seed(seed))
            logits = engine.parts[0](tokens).float()
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens.roll(1, 1).flatten())
            engine.backward(loss, last=micro == 1)
        engine.finish()
        norm_sq = global_norm_sq(engine.grad_norm_sq(), dist.group.WORLD)
        found.append(float(norm_sq))
        if step == 1:
            engine.skip()
        else:
            engine.step(1e-2, clip_factor(norm_sq, 0.1))
    held = [piece.tensor.flatten() for owned in engine.state().values() for piece in owned.pieces]
    return [*found, zlib.crc32(torch.cat(held).numpy().tobytes())]


def engines(folder: str) -> dict[str, tuple[list[float], list[list[float]], dict[str, int]]]:
    """For every stage and precision: what was found without a tier, with each, and the last one's memory."""
    found = {}
    for zero in (0, 1, 2, 3):
        for precision in ("fp32", "bf16"):
            name = f"{zero}-{precision}"
            wanted = trained(engine_of(zero, precision, NO_OFFLOAD))
            others = []
            for tier, fraction, copies in (("nvme", 1.0, None), ("cpu", 1.0, Late()), ("nvme", 0.5, Late())):
                files = rank_files([folder], f"{name}-{len(others)}", dist.get_rank())
                engine = engine_of(zero, precision, Offload(tier, fraction, files, longest=64, copies=copies))
                others.append(trained(engine))
                memory = engine.memory()
                engine.close()
            for fraction in (1.0, 0.5) if zero == 3 else ():
                files = rank_files([folder], f"{name}-all-{fraction}", dist.get_rank())
                offload = Offload("nvme", fraction, files, longest=64, params="nvme")
                engine = engine_of(zero, precision, offload)
                others.append(trained(engine))
                engine.close()
            found[name] = (wanted, others, memory)
    return found


MESHES: dict[MeshShape, Mesh] = {}


def trainer_of(spec: RunSpec, tier: str, folder: str, name: str) -> Trainer:
    spec = dataclasses.replace(spec, offload=offload_of(tier, folder), run_id=name)
    shape = spec.parallel.mesh
    MESHES.setdefault(shape, make_mesh(shape, CPU))
    blueprint = blueprint_of(spec.model, spec.train.seed)
    trainer = build_trainer(spec, blueprint, open_store(spec.data, blueprint.vocab), MESHES[shape], CPU)
    trainer.set_loss_scale(
        {"scale": FIRST_SCALE, "clean": 0, "stuck": 0}
    )  # some steps overflow and are skipped
    return trainer


def losses(trainer: Trainer, first: int, last: int) -> list[tuple[float, float, bool]]:
    results = [trainer.step(step) for step in range(first, last + 1)]
    trainer.engine.close()
    return [(r.loss, r.grad_norm if not r.skipped else 0.0, r.skipped) for r in results]


def rows(texts: list[str], folder: str) -> list[dict[str, Any]]:
    return [
        {
            tier: losses(trainer_of(from_json(RunSpec, text), tier, folder, f"{number}-{tier}"), 1, STEPS)
            for tier in tiers_of(ROWS[number])
        }
        for number, text in enumerate(texts)
    ]


SAVERS = ((1, "none"), (1, "nvme"), (3, "none"), (3, "all on a drive"))
LOADERS = ((1, "none"), (2, "half on two drives"), (0, "nvme"), (3, "none"), (3, "all on a drive"))


def saved_and_resumed(text: str, folder: str) -> dict[tuple[int, str, int, str], Any]:
    """Two steps of each saver; from there two more, by itself and by each loader. None of it needs a loss scale."""
    spec, found = from_json(RunSpec, text), {}

    def of_stage(zero: int) -> RunSpec:
        return dataclasses.replace(spec, parallel=dataclasses.replace(spec.parallel, zero=zero))

    for stage, saver in SAVERS:
        name = f"{saver}-{stage}"
        trainer = trainer_of(of_stage(stage), saver, folder, f"save-{name}")
        before = [trainer.step(step) for step in (1, 2)]
        origin = Origin(f"run-{name}", "n", 1, 2, {}, spec.precision, stage, {})
        find_start(f"{folder}/{name}", origin, "")
        writer = CheckpointWriter(f"{folder}/{name}", origin, Retention(0))
        writer.save(Position(2, optimizer_step=2, tokens=0, samples=0), trainer.engine.state())
        found[stage, saver, stage, "itself"] = losses(trainer, 3, 4)
        assert all(not result.skipped for result in before)
        for zero, tier in LOADERS:
            trainer = trainer_of(of_stage(zero), tier, folder, f"load-{name}-{tier}-{zero}")
            start = find_start(f"{folder}/{name}", origin, "")
            assert start is not None
            load(start, trainer.engine.state())
            trainer.engine.loaded()
            trainer.engine.optimizer_step = 2
            found[stage, saver, zero, tier] = losses(trainer, 3, 4)
    return found


def faults(folder: str) -> list[str]:
    """On rank 1 alone: a drive that is not there, and one with a file in the way."""
    own = Path(folder) / f"faults-{dist.get_rank()}"
    if dist.get_rank() == 0:
        own.mkdir()
    messages = []
    with pytest.raises(OffloadError) as caught:
        check_drives([str(own)])
    messages.append(str(caught.value))
    files = rank_files([folder], f"in-the-way-{dist.get_rank()}", dist.get_rank())
    if dist.get_rank() == 1:
        files[0].mkdir(parents=True)
    with pytest.raises(OffloadError) as caught:
        engine_of(2, "bf16", Offload("nvme", 1.0, files))
    messages.append(str(caught.value))
    if dist.get_rank() == 1:
        files[0].rmdir()
        files[0].parent.rmdir()
    return messages


def everything(texts: list[str], single: str, folder: str):
    return engines(folder), rows(texts, folder), saved_and_resumed(single, folder), faults(folder)


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What each of two ranks found."""
    folder = tmp_path_factory.mktemp("offload")
    (folder / "second").mkdir()
    specs = [parity.spec_of(folder, 2, [*SMALLER, *row.split()]) for row in ROWS]
    single = parity.spec_of(folder, 2, [*SMALLER, "parallel.zero=1", "train.micro_batch=4"])
    ranks = run_ranks(everything, 2, [to_json(s) for s in specs], to_json(single), str(folder), timeout_s=250)
    left = [path.name for path in folder.glob("**/distperf-offload-*")]
    return ranks, left


def test_engines(found):
    """Any stage and precision, spans of 64 elements, over drives and over copies that come late: equal to the bit."""
    for ranks in found[0]:
        for name, (wanted, others, _) in ranks[0].items():
            for other in others:
                assert other == wanted, name


def test_half_a_tier_is_counted_as_half(found):
    """Memory of state on drives, of what stays, and of gradients that travelled."""
    for ranks in found[0]:
        for name, (_, _, memory) in ranks[0].items():
            assert memory["optimizer_bytes"] > 0, name
            assert memory["host_bytes"] > 0
            assert memory["disk_bytes"] > 0


@pytest.mark.parametrize("number", range(len(ROWS)), ids=ROWS)
def test_rows(found, number):
    """Accumulation, clipping, loss scaling, copies, tensor and pipeline parallelism: every loss and norm is equal."""
    for results in found[0]:
        wanted, *others = results[1][number].values()
        assert len(others) >= 2
        assert all(other == wanted for other in others)
    if "fp16" in ROWS[number]:
        assert {skipped for _, _, skipped in wanted} == {True, False}


def test_checkpoints(found):
    """Saved with or without a tier, loaded by any other, in another stage too: the run goes on to the same bits.

    Stages 0 to 2 are one engine, and stage 3 is another, which adds norms up in another order.
    """
    for results in found[0]:
        by_engines: dict[tuple[bool, bool], set[str]] = {}
        for (saved_in, _, loaded_in, _), curve in results[2].items():
            by_engines.setdefault((saved_in == 3, loaded_in == 3), set()).add(str(curve))
        assert len(results[2]) == len(SAVERS) * (1 + len(LOADERS))
        assert [len(curves) for curves in by_engines.values()] == [1, 1, 1, 1], results[2]


def test_faults_of_one_rank_are_told_by_all(found):
    """With host, file and rank; nobody goes on alone."""
    said = [results[3] for results in found[0]]
    assert said[0] == said[1]
    missing, in_the_way = said[0]
    assert "faults-1 is not there; make it, or mount the drive (rank 1)" in missing
    assert "no room for offloaded state: " in in_the_way
    assert "rank-00001.state: cannot be made: Is a directory (rank 1)" in in_the_way


def test_nothing_is_left(found):
    """Closed engines have removed their files and folders."""
    assert found[1] == []
