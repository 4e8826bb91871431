"""The parity matrix: combinations of everything the runtime can do, each against a plain loop in one process.

A row is a number of ranks and what of the base recipe it changes. `scripts/correctness` writes the matrix, filled,
into docs/correctness.md; tests/distperf/test_build_parity.py holds every row to its limits.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from ranks import run_ranks
from torch import Tensor

from distperf.build import build_trainer
from distperf.data.loader import Loader
from distperf.data.opening import open_store
from distperf.model.blueprint import blueprint_of
from distperf.model.dropout import Draws, attach_draws
from distperf.model.llama import build_model
from distperf.optim.schedules import lr_at
from distperf.parallel.mesh import Mesh, make_mesh
from distperf.recipe.load import load_recipe
from distperf.recipe.mesh import MeshShape
from distperf.recipe.resolve import resolve
from distperf.recipe.runspec import RunSpec, from_json, to_json

STEPS = 10
BASE = f"""
name: parity
model: {{family: llama, layers: 4, hidden: 32, heads: 4, kv_heads: 2, ffn: 48, vocab: 128}}
data: {{synthetic: true, seq_len: 16}}
train: {{steps: {STEPS}, global_batch: 16, micro_batch: 4, grad_clip: 0.5}}
optimizer: {{lr: 1e-3, schedule: {{warmup_steps: 3}}}}
precision: fp32
parallel: {{zero: 0}}
checkpoint: {{every_steps: 0, save_last: false}}
"""
CPU = torch.device("cpu")
CARRIED_OUT = ("parallel.", "train.micro_batch", "activation_checkpoint", "train.compile")
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}

# What the numbers may differ by, relative, where reordering the samples does not make one process differ by more.
LIMITS = {"fp32": 1e-5, "bf16": 2e-2, "fp16": 2e-2}


@dataclass(frozen=True)
class Row:
    """A combination: its number of ranks, and the recipe keys it changes, as `--set` takes them."""

    world: int
    sets: tuple[str, ...]

    @property
    def name(self) -> str:
        """Short, for the table and for pytest."""
        short = (part.removeprefix("parallel.").removeprefix("train.") for part in self.sets)
        return f"{self.world} ranks: {', '.join(short) or 'alone'}"

    @property
    def precision(self) -> str:
        """fp32 where the row does not say."""
        return next((s.partition("=")[2] for s in self.sets if s.startswith("precision=")), "fp32")

    @property
    def plain_sets(self) -> tuple[str, ...]:
        """What of it changes the training itself, not the way it is carried out."""
        return tuple(part for part in self.sets if not part.startswith(CARRIED_OUT))

    def spec(self, folder: Path) -> RunSpec:
        """Resolved as a launch would, data in `folder`."""
        sets = [part.replace("DOCUMENTS", str(folder / "*.txt")) for part in self.sets]
        return spec_of(folder, self.world, sets)


def spec_of(folder: Path, world: int, sets: list[str]) -> RunSpec:
    recipe = folder / "parity.yaml"
    recipe.write_text(BASE)
    return resolve(load_recipe(recipe, sets), run_id="parity", world_size=world, checkpoint_dir=str(folder))


@dataclass(frozen=True)
class Curve:
    """What a run gave: loss and gradient norm of every step, and the clipped gradients of the first."""

    losses: list[float]
    norms: list[float]
    gradients: dict[str, Tensor]


@dataclass(frozen=True)
class Difference:
    """Largest relative differences: of losses, of norms, and of a parameter's gradient (L2)."""

    loss: float
    norm: float
    gradient: float

    @property
    def largest(self) -> float:
        return max(self.loss, self.norm, self.gradient)


def difference(found: Curve, wanted: Curve) -> Difference:
    """Every step and every parameter counts; a parameter that only one of the two has is an infinite difference."""
    if found.gradients.keys() != wanted.gradients.keys():
        return Difference(math.inf, math.inf, math.inf)
    of = {
        fqn: float((found.gradients[fqn] - wanted.gradients[fqn]).norm() / wanted.gradients[fqn].norm())
        for fqn in wanted.gradients
    }
    return Difference(
        _largest(found.losses, wanted.losses), _largest(found.norms, wanted.norms), max(of.values())
    )


def _largest(found: list[float], wanted: list[float]) -> float:
    return max(abs(a - b) / abs(b) for a, b in zip(found, wanted, strict=True))


def noise(sets: tuple[str, ...]) -> Difference:
    """What the order of the samples in a batch makes of one process."""
    return difference(plain(sets, reordered=True), plain(sets))


# One process, without distperf's engines


@cache
def plain(sets: tuple[str, ...], reordered: bool = False) -> Curve:
    """The plain loop: whole batches, autograd, torch's AdamW and clipping. `reordered`: batches backwards."""
    with TemporaryDirectory() as tmp:
        folder = Path(tmp)
        write_documents(folder)
        return _plain_run(Row(1, (*sets, "train.micro_batch=16")).spec(folder), reordered)


def _plain_run(spec: RunSpec, reordered: bool) -> Curve:
    torch.set_num_threads(1)
    dtype, scale = DTYPES[spec.precision], 2.0**12 if spec.precision == "fp16" else 1.0
    model, blueprint = build_model(spec.model).to_empty(device="cpu"), blueprint_of(spec.model, 1)
    with torch.no_grad():
        for fqn, parameter in model.named_parameters():
            parameter.copy_(blueprint.fill(fqn, parameter.shape, 0, parameter.numel()).view(parameter.shape))
    working = copy.deepcopy(model).to(dtype)  # `model` has the fp32 masters
    draws = Draws(spec.train.seed, CPU)
    attach_draws(working, draws)
    matrices = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() <= 1]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, betas=spec.optimizer.betas, eps=spec.optimizer.eps)
    loader = Loader(spec.data, open_store(spec.data, spec.model.vocab), spec.train, 0, 1)
    losses, norms, gradients = [], [], {}
    for step in range(1, STEPS + 1):
        inputs, targets = loader.batch(step, 0)
        if reordered:
            inputs, targets = inputs.flip(0), targets.flip(0)
        draws.at(loader.first(step, 0))
        working.load_state_dict(model.state_dict())
        logits = working(inputs).float().flatten(0, 1)
        loss = torch.nn.functional.cross_entropy(logits, targets.flatten(), ignore_index=-100)
        (loss * scale).backward()
        for master, used in zip(model.parameters(), working.parameters(), strict=True):
            assert used.grad is not None
            master.grad, used.grad = used.grad.float() / scale, None
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), spec.train.grad_clip)
        if step == 1:
            gradients = {fqn: p.grad.clone() for fqn, p in model.named_parameters()}
        for group in optimizer.param_groups:
            group["lr"] = lr_at(step, spec.optimizer.schedule, spec.optimizer.lr, STEPS)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        norms.append(float(norm))
    return Curve(losses, norms, gradients)


def write_documents(folder: Path) -> None:
    """Texts of very different lengths, so that ranks and micro-batches have unequally many targets."""
    for number in range(60):
        (folder / f"{number:02}.txt").write_text("ab" * number + "." if number % 3 else "x")


# Real ranks


def run_rows(rows: list[Row]) -> list[Curve]:
    """Train all rows, of one world size, on one set of ranks."""
    with TemporaryDirectory() as tmp:
        folder = Path(tmp)
        write_documents(folder)
        specs = [to_json(row.spec(folder)) for row in rows]
        for row in rows:  # tokenise once, not on every rank
            open_store(row.spec(folder).data, 257)
        limits = {"timeout_s": 120.0 + 20 * len(rows), "group_timeout_s": 240.0}
        found = run_ranks(train_specs, rows[0].world, specs, **limits)
    return [_joined([ranks[index] for ranks in found]) for index in range(len(rows))]


def train_specs(specs: list[str]) -> list[tuple[list[float], list[float], dict[str, Any]]]:
    """On a rank: losses and norms of every spec, and the pieces of gradients that this rank would save."""
    meshes: dict[MeshShape, Mesh] = {}
    results = []
    for text in specs:
        spec = from_json(RunSpec, text)
        shape = spec.parallel.mesh
        if shape not in meshes:
            meshes[shape] = make_mesh(shape, CPU)
        results.append(_train(spec, meshes[shape]))
    return results


def _train(spec: RunSpec, mesh: Mesh) -> tuple[list[float], list[float], dict[str, Any]]:
    blueprint = blueprint_of(spec.model, spec.train.seed)
    samples = open_store(spec.data, blueprint.vocab)
    trainer = build_trainer(spec, blueprint, samples, mesh, CPU)
    losses, norms, pieces = [], [], {}
    for step in range(1, STEPS + 1):
        result = trainer.step(step)
        losses.append(result.loss)
        norms.append(result.grad_norm)
        if step == 1:
            pieces = dict(_gradient_pieces(trainer.engine.state(), spec.optimizer.betas[0]))
    return losses, norms, pieces


def _gradient_pieces(state: Any, beta: float) -> Iterator[tuple[str, Any]]:
    """After one step Adam's first moment is (1 - beta) times the gradient."""
    for key, owned in state.items():
        fqn = key.removeprefix("optimizer.exp_avg.")
        if fqn != key and owned.saves:
            found = [(piece.offsets, piece.tensor / (1 - beta)) for piece in owned.pieces]
            yield fqn, (owned.shape, found)


def _joined(ranks: list[tuple[list[float], list[float], dict[str, Any]]]) -> Curve:
    """Losses as rank 0 has them, which all must have; whole gradients from all ranks' pieces."""
    losses, norms, _ = ranks[0]
    assert all((other[0], other[1]) == (losses, norms) for other in ranks), "all ranks know the same numbers"
    gradients: dict[str, Tensor] = {}
    for _, _, pieces in ranks:
        for fqn, (shape, found) in pieces.items():
            whole = gradients.setdefault(fqn, torch.full(shape, math.nan))
            for offsets, tensor in found:
                place = tuple(slice(o, o + n) for o, n in zip(offsets, tensor.shape, strict=True))
                assert whole[place].isnan().all(), f"{fqn}: saved twice"
                whole[place] = tensor
    return Curve(losses, norms, gradients)


# The matrix

SCHEDULES = ("gpipe", "1f1b", "interleaved_1f1b", "zero_bubble", "zbv", "dualpipev")
TOP = ("precision", "activation_checkpoint")  # keys that are no section's
TIED = "model.tied_embedding=true"
ODD = "model.vocab=97"


def rows() -> list[Row]:
    """Every combination of the matrix."""
    return [Row(world, tuple(s if s.startswith(TOP) or "." in s else f"parallel.{s}" for s in sets.split()))
            for world, sets in _listed()]  # fmt: skip


def _listed() -> Iterator[tuple[int, str]]:
    yield from ((2, f"zero={zero} train.micro_batch={micro}") for zero in range(4) for micro in (8, 2))
    yield from ((2, f"zero={zero} tp=2") for zero in (0, 3))
    yield from ((2, f"tp=2 {more}") for more in (TIED, ODD, f"{TIED} {ODD}"))
    yield from ((2, f"zero={zero} cp=2 cp_method={m}") for zero in range(4) for m in ("ulysses", "ring"))
    yield from ((2, f"pp=2 pp_schedule={schedule}") for schedule in SCHEDULES)
    yield from ((2, f"pp=2 pp_schedule={schedule} {TIED}") for schedule in SCHEDULES)
    yield from ((2, f"pp=2 {more}") for more in ("pp_layers=[3,1]", "pp_layers=[1,3]"))
    yield from ((2, f"precision={p} zero={zero}") for p in ("bf16", "fp16") for zero in (1, 3))
    for drops in ("", "model.dropout=0.1"):
        for keeps in ("selective", "full"):
            yield 2, f"zero=3 activation_checkpoint={keeps} {drops}"
            yield 2, f"tp=2 activation_checkpoint={keeps} {drops}"
    yield from (
        (2, f"model.dropout=0.1 {more}") for more in ("zero=2", "cp=2 cp_method=ring", "tp=2", "pp=2")
    )
    yield 2, "model.dropout=0.1 activation_checkpoint=full pp=2"
    yield 2, "precision=bf16 pp=2"
    yield 2, "precision=fp16 pp=2 pp_schedule=zbv"
    yield 2, "precision=bf16 tp=2"
    yield from ((2, f"data.synthetic=false data.text=[DOCUMENTS] data.boundary=mask model.vocab=257 {more}")
                for more in ("zero=2", "zero=3", "cp=2", "pp=2", "tp=2"))  # fmt: skip
    yield from ((4, f"pp=2 zero={zero} {_enough(schedule)}") for schedule in SCHEDULES for zero in range(4))
    yield from ((4, f"pp=2 zero={zero} pp_schedule={s} {TIED}") for zero in (2, 3) for s in ("1f1b", "zbv"))
    yield from ((4, f"dp_replicate=2 zero={zero}") for zero in range(4))
    yield from ((4, f"tp=2 zero={zero}") for zero in (1, 2, 3))
    yield from ((4, f"cp=2 zero={zero}") for zero in (1, 2, 3))
    yield 4, "cp=2 tp=2 model.kv_heads=4 zero=2"
    yield 4, "cp=2 cp_method=ring tp=2 zero=3"
    yield 4, "pp=2 tp=2"
    yield 4, f"pp=2 tp=2 {TIED} {ODD}"
    yield 4, "pp=2 cp=2 zero=3"
    yield 4, "tp=4 model.kv_heads=4"
    yield 4, "cp=4 cp_method=ring zero=3"
    yield 4, "pp=4"
    yield from ((8, f"pp=2 tp=2 zero={z} {_enough(s)}") for z in (1, 3) for s in ("1f1b", "zbv", "dualpipev"))
    yield 8, f"pp=2 tp=2 zero=3 {TIED} {ODD}"
    yield 8, "pp=2 cp=2 tp=2 cp_method=ring zero=2"
    yield 8, "dp_replicate=2 tp=2 zero=3"
    yield 8, "dp_replicate=2 cp=2 zero=3"
    yield 8, "pp=2 dp_replicate=2 zero=3 train.micro_batch=2"
    yield 8, "pp=2 dp_replicate=2 zero=1 train.micro_batch=2"


def _enough(schedule: str) -> str:
    """The schedule, with as many micro-batches as it needs on two data-parallel ranks."""
    return f"pp_schedule={schedule}" + " train.micro_batch=2" * (schedule == "dualpipev")
