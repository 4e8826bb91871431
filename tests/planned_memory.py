"""Runs of small models in real ranks, with every byte that a step allocates counted, against what the plan says."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
import torch.distributed as dist
from ranks import run_ranks

from distperf.build import build_trainer
from distperf.data.opening import open_store
from distperf.model.blueprint import blueprint_of
from distperf.parallel.mesh import make_mesh
from distperf.recipe.load import load_recipe
from distperf.recipe.planner.hardware import CPU, Hardware
from distperf.recipe.planner.memory import Memory, memories
from distperf.recipe.resolve import resolve
from distperf.recipe.runspec import RunSpec, from_json, to_json

# Large enough for activations to matter beside weights, small enough for a step to take a second.
BASE = """
name: planned
model: {family: llama, layers: 4, hidden: 128, heads: 4, kv_heads: 2, ffn: 352, vocab: 2000}
data: {synthetic: true, seq_len: 256}
train: {steps: 3, global_batch: 8, micro_batch: 4, check_replicas_every: 0}
precision: fp32
checkpoint: {every_steps: 0, save_last: false}
"""
HERE = "THIS_FOLDER"  # in a row: one that is there while it runs
ON_CPU = Hardware(CPU, None, "a test")


@dataclass(frozen=True)
class Counted:
    """Bytes of one rank, planned and counted: state, and all else that a step needs at its worst."""

    planned: Memory
    state: int
    transient: int

    @property
    def planned_bytes(self) -> int:
        """Of both together, as planned."""
        return self.planned.state_bytes - self.planned.absent_bytes + self.planned.transient_bytes

    @property
    def counted_bytes(self) -> int:
        """As counted."""
        return self.state + self.transient

    @property
    def ratio(self) -> float:
        """Planned by counted."""
        return self.planned_bytes / self.counted_bytes


def specs_of(world: int, rows: list[tuple[str, ...]], folder: Path, text: str) -> list[RunSpec]:
    recipe = folder / "planned.yaml"
    recipe.write_text(text)
    return [
        resolve(
            load_recipe(recipe, [key.replace(HERE, str(folder)) for key in row]),
            run_id="planned",
            world_size=world,
            checkpoint_dir=str(folder),
        )
        for row in rows
    ]


def counted(world: int, rows: list[tuple[str, ...]], recipe: str = BASE) -> list[list[Counted]]:
    """Each row's ranks."""
    with TemporaryDirectory() as folder:
        specs = specs_of(world, rows, Path(folder), recipe)
        with freed_at_once():
            found = run_ranks(count_all, world, [to_json(spec) for spec in specs], timeout_s=600)
    by_place = [memories(spec, ON_CPU) for spec in specs]
    return [
        [Counted(places[ranks[at][0]], *ranks[at][1:]) for ranks in found]
        for at, places in enumerate(by_place)
    ]


@contextmanager
def freed_at_once() -> Iterator[None]:
    """Processes started inside give what they free back to the kernel, so that resident bytes are live bytes."""
    settings = {"MALLOC_MMAP_THRESHOLD_": "16384", "MALLOC_TRIM_THRESHOLD_": "0", "MALLOC_MMAP_MAX_": "1000000",
                "MALLOC_ARENA_MAX": "1"}  # fmt: skip
    before = {key: os.environ.get(key) for key in settings}
    os.environ.update(settings)
    try:
        yield
    finally:
        for key, value in before.items():
            os.environ.pop(key) if value is None else os.environ.update({key: value})


def count_all(texts: list[str]) -> list[tuple[int, int, int]]:
    return [count(from_json(RunSpec, text)) for text in texts]


def count(spec: RunSpec) -> tuple[int, int, int]:
    """This rank's place in the pipeline; bytes of state; the most that a step had beside, its buffers included."""
    device = torch.device("cpu")
    blueprint = blueprint_of(spec.model, spec.train.seed, spec.frozen)
    samples = open_store(spec.data, blueprint.vocab)
    mesh = make_mesh(spec.parallel.mesh, device)
    trainer = build_trainer(spec, blueprint, samples, mesh, device)
    trainer.step(1)
    trainer.engine.state()  # of shards that rest on drives, what is still being written is let go of
    gc.collect()
    before = reset_peak()
    trainer.step(2)
    most = 1024 * status("VmHWM") - before
    held = trainer.engine.memory()
    away = spec.offload.params == "nvme"
    if away or (spec.parallel.zero == 3 and spec.parallel.dp_shard * spec.parallel.cp > 1):
        most -= held["gradients_bytes"]  # which come and go in a step, and so were counted in it
    if away:
        most -= held["parameters_bytes"]
    state = held["parameters_bytes"] + held["gradients_bytes"] + held["optimizer_bytes"]
    dist.barrier()
    trainer.engine.close()
    return mesh.coordinates["pp"], state, most + held["buckets_bytes"]


def reset_peak() -> int:
    """Resident bytes now, from which the peak counts on."""
    Path("/proc/self/clear_refs").write_text("5")
    return 1024 * status("VmRSS")


def status(name: str) -> int:
    """KiB of a line of /proc/self/status."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name))
