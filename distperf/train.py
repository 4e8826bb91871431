"""`python -m distperf.train`: one rank of a run, from its orders to its last checkpoint."""

from __future__ import annotations

import os
import sys
import time
from typing import NoReturn

import torch

from distperf.build import Orders, build_trainer, build_workload
from distperf.checkpoint.load import find_start, load
from distperf.checkpoint.save import CheckpointWriter
from distperf.contract import EXIT_FAILED, EXIT_OK, EXIT_TERMINATED, RESUME_ENV, reporter
from distperf.failure import report_failure
from distperf.measure.progress import Progress
from distperf.measure.recorder import answer_requests
from distperf.process_group import Ranks, join, leave
from distperf.recipe.estimate import parameter_count
from distperf.recipe.runspec import CheckpointSpec, RunSpec
from distperf.stop import StopRequest
from distperf.trainer import Trainer


def main() -> int:
    """Run, and turn whatever goes wrong into a report and an exit code.

    Here, and nowhere else in the runtime, every exception is caught: a rank must not end without saying why.
    """
    try:
        finished = run()
    except Exception as error:
        report_failure(error, reporter())
        return EXIT_FAILED
    return EXIT_OK if finished else EXIT_TERMINATED


def run() -> bool:
    """The story of a rank: meet the others, build, resume, train, save, leave. False: told to end before the end."""
    reporter().send("phase", phase="build")
    answer_requests()
    ranks = Ranks.from_env()
    orders = Orders.from_env(ranks)
    device, store = join(ranks)
    trainer = build_trainer(orders.spec, ranks, device, store)
    progress = Progress(reporter(), ranks.rank, orders.attempt, build_workload(orders.spec, device))
    progress.say(_description(orders.spec, device))
    done = resume(orders, trainer, progress)
    finished = train(orders, trainer, progress, done)
    if finished:
        reporter().send("done")
    leave()
    return finished


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
    progress.tokens_seen = found.manifest.tokens
    step, path = found.manifest.step, str(found.path)
    progress.event("resume", f"resumed after step {step} from {path}", step=step, path=path)
    return step


def train(orders: Orders, trainer: Trainer, progress: Progress, done: int) -> bool:
    """Steps `done` + 1 to the last, and a checkpoint wherever one is due.

    SIGTERM on any rank has all of them end after the same step, with a checkpoint of it: False then.
    """
    spec, stop = orders.spec, StopRequest()
    writer = CheckpointWriter(spec.checkpoint.dir, orders.origin(), spec.checkpoint.keep)
    progress.memory(trainer.engine.memory())
    progress.phase("train")
    stop.listen()
    for step in range(done + 1, spec.train.steps + 1):
        began = time.perf_counter()
        result = trainer.step(step, stop)
        progress.step(step, result, time.perf_counter() - began)
        if step == done + 2:  # gradients and optimizer state of a step have all been there once
            progress.memory(trainer.engine.memory())
        if is_due(step, spec.checkpoint, spec.train.steps) or (result.stop and spec.checkpoint.is_on):
            save(step, trainer, writer, progress)
        if result.stop and step < spec.train.steps:
            progress.event("stop", f"stopped after step {step}: SIGTERM", step=step)
            return False
    progress.say(f"done: {spec.train.steps} steps, {progress.tokens_seen:,} tokens")
    return True


def is_due(step: int, checkpoint: CheckpointSpec, last: int) -> bool:
    """Whether a checkpoint is written after `step`."""
    every = checkpoint.every_steps
    return (every > 0 and step % every == 0) or (checkpoint.save_last and step == last)


def save(step: int, trainer: Trainer, writer: CheckpointWriter, progress: Progress) -> None:
    """Write a checkpoint and say so. Collective."""
    progress.phase("checkpoint")
    saved = writer.save(
        step,
        trainer.engine.state(),
        optimizer_step=trainer.engine.optimizer_step,
        tokens=progress.tokens_seen,
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
    source = "synthetic data" if data.synthetic else f"data {', '.join(data.text or data.tokens)}"
    return (
        f"{spec.name}: {parameter_count(spec.model):,} parameters in {spec.precision}, "
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
