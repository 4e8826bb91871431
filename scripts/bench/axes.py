"""What each axis costs: tokens/s, bytes sent, peak memory of two ranks, against the formulas of the docstrings.

    sudo python scripts/bench/axes.py [--steps 5] [--out FILE]

Every row is two fresh ranks (one thread each) in a network namespace of their own, so that what its loopback device
sent in the timed steps is what the ranks sent to each other, headers and all. `stated` is what the `Cost:` lines of
the docstrings say, of the named collectives alone. All rows train the same model on the same global batch, in turn,
so that they compare.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from distperf.build import build_trainer
from distperf.data.opening import open_store
from distperf.model.blueprint import blueprint_of
from distperf.parallel.mesh import make_mesh
from distperf.recipe.estimate import parameter_count
from distperf.recipe.load import load_recipe
from distperf.recipe.resolve import resolve
from distperf.recipe.runspec import ModelSpec, RunSpec

RANKS, WARM_UP = 2, 2
RECIPE = """
name: axes
model: {family: llama, layers: 8, hidden: 384, heads: 6, kv_heads: 6, ffn: 1024, vocab: 4096}
data: {synthetic: true, seq_len: 256}
train: {steps: 100, global_batch: 16, micro_batch: 2}
precision: fp32
checkpoint: {every_steps: 0, save_last: false}
"""
WORD = 4  # bytes of an element


@dataclass(frozen=True)
class Case:
    """A row: what of the recipe it changes, and the bytes a rank sends a step by the docstrings."""

    name: str
    sets: tuple[str, ...]
    stated: Callable[[RunSpec], float]


def of_model(times: float) -> Callable[[RunSpec], float]:
    """So many times each parameter, from one of two ranks to the other."""
    return lambda spec: times * parameter_count(_model(spec)) / 2 * WORD


def stream(spec: RunSpec) -> float:
    """Bytes of the residual stream of one step, over all its micro-batches: B * S * D * w of each."""
    passes = spec.train.global_batch // spec.parallel.mesh.data_parallel_size
    return passes * spec.data.seq_len * _model(spec).hidden * WORD


def tensor(spec: RunSpec) -> float:
    """`apply_tensor_parallel`: a block 8/2 of the stream, embedding and head a quarter of that each."""
    return (_model(spec).layers + 0.5) * 4 * stream(spec)


def ulysses(spec: RunSpec) -> float:
    """`Ulysses`: q, k, v and the output, half of each rank's rows, forward and backward; and ZeRO's, over cp."""
    return _model(spec).layers * 2 * 4 * (stream(spec) / 2) / 2 + of_model(2)(spec)


def ring(spec: RunSpec) -> float:
    """`Ring`: k and v forward, again backward with their gradients twice; and ZeRO's, over cp."""
    return _model(spec).layers * (2 + 2 + 4) * (stream(spec) / 2) + of_model(2)(spec)


def pipeline(spec: RunSpec) -> float:
    """`Pipelined`: activations one way, their gradients the other, at each border between ranks."""
    borders = len(spec.parallel.pp_layers) - 1 - spec.parallel.pp_schedule.startswith(("zbv", "dual"))
    return borders * 2 * stream(spec) / RANKS


def _model(spec: RunSpec) -> ModelSpec:
    assert isinstance(spec.model, ModelSpec)
    return spec.model


CASES = [
    Case("ZeRO-0", ("parallel.zero=0",), of_model(2)),
    Case("ZeRO-1", ("parallel.zero=1",), of_model(2)),
    Case("ZeRO-2", ("parallel.zero=2",), lambda spec: of_model(1 + spec.train.accumulation)(spec)),
    Case("ZeRO-3", ("parallel.zero=3",), lambda spec: of_model(3 * spec.train.accumulation)(spec)),
    Case("tp 2", ("parallel.tp=2",), tensor),
    Case("cp 2, ulysses", ("parallel.cp=2", "parallel.zero=1"), ulysses),
    Case("cp 2, ring", ("parallel.cp=2", "parallel.cp_method=ring", "parallel.zero=1"), ring),
    Case("pp 2, 1f1b", ("parallel.pp=2",), pipeline),
    Case("pp 2, interleaved_1f1b", ("parallel.pp=2", "parallel.pp_schedule=interleaved_1f1b"), pipeline),
    Case("pp 2, zbv", ("parallel.pp=2", "parallel.pp_schedule=zbv"), pipeline),
]


@dataclass(frozen=True)
class Measured:
    """Of one case: seconds a step, bytes a rank sent in one, peak resident bytes of the larger rank."""

    step_s: float
    sent: float
    peak: int


def spec_of(case: Case) -> RunSpec:
    with TemporaryDirectory() as tmp:
        recipe = Path(tmp) / "axes.yaml"
        recipe.write_text(RECIPE)
        return resolve(load_recipe(recipe, case.sets), run_id="axes", world_size=RANKS, checkpoint_dir=tmp)


def run_alone(index: int, steps: int) -> Measured:
    """The case in a fresh process, in a network namespace of its own."""
    command = [
        "unshare",
        "--net",
        "sh",
        "-c",
        'ip link set lo up && exec "$@"',
        "sh",
        sys.executable,
        __file__,
    ]
    out = subprocess.run(
        [*command, "--case", str(index), "--steps", str(steps)], capture_output=True, text=True
    )
    if out.returncode:
        sys.exit(f"{CASES[index].name} failed:\n{out.stderr}")
    step_s, sent, peak = out.stdout.split()[-3:]
    return Measured(float(step_s), float(sent), int(peak))


def measure(index: int, steps: int) -> None:
    """Both ranks of a case; prints what `Measured` holds."""
    found = mp.get_context("spawn").SimpleQueue()
    mp.spawn(_rank, (index, steps, found), RANKS)
    results = [found.get() for _ in range(RANKS)]
    print(results[0][0], results[0][1], max(peak for _, _, peak in results))


def _rank(rank: int, index: int, steps: int, found: mp.SimpleQueue) -> None:
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(RANKS), MASTER_ADDR="127.0.0.1", MASTER_PORT="29555")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    spec, cpu = spec_of(CASES[index]), torch.device("cpu")
    blueprint = blueprint_of(spec.model, 1)
    samples = open_store(spec.data, blueprint.vocab)
    trainer = build_trainer(spec, blueprint, samples, make_mesh(spec.parallel.mesh, cpu), cpu)
    for step in range(1, WARM_UP + 1):
        trainer.step(step)
    dist.barrier()
    sent, began = loopback_bytes(), time.perf_counter()
    for step in range(WARM_UP + 1, WARM_UP + steps + 1):
        trainer.step(step)
    dist.barrier()
    step_s = (time.perf_counter() - began) / steps
    sent_each = (loopback_bytes() - sent) / steps / RANKS
    found.put((step_s, sent_each, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024))
    dist.destroy_process_group()


def loopback_bytes() -> int:
    """What the loopback device of this namespace has sent."""
    for line in Path("/proc/self/net/dev").read_text().splitlines():
        name, _, rest = line.partition(":")
        if name.strip() == "lo":
            return int(rest.split()[8])
    raise SystemExit("no loopback device")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--case", type=int)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    if args.case is not None:
        measure(args.case, args.steps)
        return
    lines = ["| axis | tokens/s | sent a step, MB a rank | stated | peak RSS, MB |", "|---|---|---|---|---|"]
    for index, case in enumerate(CASES):
        found, spec = run_alone(index, args.steps), spec_of(case)
        tokens = spec.train.global_batch * spec.data.seq_len
        lines.append(
            f"| {case.name} | {tokens / found.step_s:,.0f} | {found.sent / 1e6:.1f} | "
            f"{case.stated(spec) / 1e6:.1f} | {found.peak / 1e6:,.0f} |"
        )
        print(lines[-1], flush=True)
    if args.out:
        args.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
