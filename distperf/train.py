"""`python -m distperf.train`: one rank of a run, from its orders to its last checkpoint."""

from __future__ import annotations

import os
import sys
import time
from typing import NoReturn

import torch
from torch._C._distributed_c10d import Store

from distperf.build import Orders, build_trainer, build_workload
from distperf.checkpoint.load import find_start, load
from distperf.checkpoint.save import CheckpointWriter
from distperf.contract import EXIT_FAILED, EXIT_OK, RESUME_ENV, reporter
from distperf.data.together import open_data
from distperf.failure import report_failure
from distperf.measure.progress import Progress, Workload
from distperf.measure.recorder import answer_requests
from distperf.parallel.fp8 import refuse_without_units
from distperf.parallel.mesh import make_mesh
from distperf.process_group import Ranks, join, leave
from distperf.recipe.estimate import known_parameters
from distperf.recipe.runspec import CheckpointSpec, RunSpec
from distperf.trainer import Trainer


def main() -> int:
    """Run, and turn whatever goes wrong into a report and an exit code.

    Here, and nowhere else in the runtime, every exception is caught: a rank must not end without saying why.
    """
    try:
        run()
    except Exception as error:
        report_failure(error, reporter())
        return EXIT_FAILED
    return EXIT_OK


def run() -> None:
    """The story of a rank: meet the others, build, resume, train, save, leave."""
    reporter().send("phase", phase="build")
    answer_requests()
    ranks = Ranks.from_env()
    orders = Orders.from_env(ranks)
    device, store = join(ranks)
    trainer, workload = _build(orders, ranks, device, store)
    progress = Progress(reporter(), ranks.rank, orders.attempt, workload)
    progress.say(_description(orders.spec, device))
    done = resume(orders, trainer, progress)
    train(orders, trainer, progress, done)
    reporter().send("done")
    leave()


def _build(orders: Orders, ranks: Ranks, device: torch.device, store: Store) -> tuple[Trainer, Workload]:
    """Trainer and workload. The blueprint, which may hold a whole copy of the initial values, is let go of here."""
    spec = orders.spec
    if spec.precision == "fp8":
        refuse_without_units(device)
    blueprint = orders.blueprint()
    workload = build_workload(spec, blueprint, device)
    reporter().send("phase", phase="data")
    samples = open_data(spec.data, blueprint.vocab, ranks, store)
    reporter().send("phase", phase="build")
    mesh = make_mesh(spec.parallel.mesh, device)
    return build_trainer(spec, blueprint, samples, mesh, device), workload


def resume(orders: Orders, trainer: Trainer, progress: Progress) -> int:
    """Fill model and optimizer from the checkpoint to start from, if any; returns the last finished step."""
    checkpoint, told = orders.spec.checkpoint, os.environ.get(RESUME_ENV, "")
    found = find_start(checkpoint.dir, orders.origin(), told, writes=checkpoint.is_on)
    if found is None:
        return 0
    for problem in found.passed_over:
        progress.event("checkpoint_damaged", f"passed over a damaged checkpoint: {problem}", problem=problem)
    load(found, trainer.engine.state())
    trainer.engine.loaded()
    trainer.engine.optimizer_step = found.manifest.optimizer_step
    trainer.set_loss_scale(found.manifest.loss_scale)
    progress.tokens_seen = found.manifest.tokens
    step, path = found.manifest.step, str(found.path)
    progress.event("resume", f"resumed after step {step} from {path}", step=step, path=path)
    return step


def train(orders: Orders, trainer: Trainer, progress: Progress, done: int) -> None:
    """Steps `done` + 1 to the last, and a checkpoint wherever one is due."""
    spec = orders.spec
    writer = CheckpointWriter(spec.checkpoint.dir, orders.origin(), spec.checkpoint.keep)
    progress.memory(trainer.engine.memory())
    progress.phase("train")
    for step in range(done + 1, spec.train.steps + 1):
        began = time.perf_counter()
        result = trainer.step(step)
        progress.step(step, result, time.perf_counter() - began)
        if step == done + 2:  # gradients and optimizer state of a step have all been there once
            progress.memory(trainer.engine.memory())
        saves = is_due(step, spec.checkpoint, spec.train.steps)
        if trainer.replicas is not None and compares(step, spec.train.check_replicas_every, saves):
            trainer.replicas.check(step)
        if saves:
            save(step, trainer, writer, progress)
    progress.say(f"done: {spec.train.steps} steps, {progress.tokens_seen:,} tokens")


def is_due(step: int, checkpoint: CheckpointSpec, last: int) -> bool:
    """Whether a checkpoint is written after `step`."""
    every = checkpoint.every_steps
    return (every > 0 and step % every == 0) or (checkpoint.save_last and step == last)


def compares(step: int, every: int, saves: bool) -> bool:
    """Whether ranks compare what they must hold equal after `step`: now and then, and before it is saved."""
    return every > 0 and (saves or step % every == 0)


def save(step: int, trainer: Trainer, writer: CheckpointWriter, progress: Progress) -> None:
    """Write a checkpoint and say so. Collective."""
    progress.phase("checkpoint")
    saved = writer.save(
        step,
        trainer.engine.state(),
        optimizer_step=trainer.engine.optimizer_step,
        tokens=progress.tokens_seen,
        loss_scale=trainer.loss_scale,
    )
    what = (
        f"saved {saved.size_bytes:,} bytes in {saved.seconds:.1f} s" if saved.written else "was there already"
    )
    progress.event(
        "checkpoint",
        f"checkpoint {saved.path}: {what}",
        step=step,
        path=str(saved.path),
        written=saved.written,
        bytes=saved.size_bytes,
        seconds=saved.seconds,
    )
    progress.phase("train")


def _description(spec: RunSpec, device: torch.device) -> str:
    train, data = spec.train, spec.data
    count = known_parameters(spec.model)
    counted = "" if count is None else f"{count:,} parameters in "
    source = "synthetic data" if data.synthetic else f"data {', '.join(data.text or data.tokens)}"
    return (
        f"{spec.name}: {counted}{spec.precision}, "
        f"ZeRO-{spec.parallel.zero} on {spec.world_size} ranks ({device.type}); {source}; "
        f"{train.steps} steps of {train.global_batch} x {data.seq_len} tokens "
        f"(micro-batch {train.micro_batch}, accumulation {train.accumulation})"
    )


def end(code: int) -> NoReturn:
    """End the process here: taking torch apart takes a third of a second a rank, and everything is written."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    end(main())
