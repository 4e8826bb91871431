"""`python -m distperf.train`: one rank of a run, from its orders to its last checkpoint."""

from __future__ import annotations

import os
import sys
import time
from contextlib import closing
from dataclasses import dataclass
from typing import NoReturn

import torch
from torch._C._distributed_c10d import Store

from distperf.build import Orders, build_evaluator, build_trainer, build_workload
from distperf.checkpoint.manifest import Origin
from distperf.contract import EXIT_FAILED, EXIT_OK, EXIT_TERMINATED, reporter
from distperf.data.store import data_origin
from distperf.data.together import open_data
from distperf.evaluation import Evaluator
from distperf.failure import report_failure
from distperf.measure.progress import Evaluated, Progress, Workload
from distperf.measure.recorder import answer_requests
from distperf.offload.keeping import check_drives
from distperf.parallel.fp8 import refuse_without_units
from distperf.parallel.mesh import make_mesh
from distperf.process_group import Ranks, join, leave
from distperf.recipe.estimate import known_parameters
from distperf.recipe.runspec import OffloadSpec, RunSpec
from distperf.saving import Checkpoints, compares, is_due, resume
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
    built = _build(orders, ranks, device, store)
    progress = Progress(reporter(), ranks.rank, orders.attempt, built.workload)
    progress.say(_description(orders.spec, device))
    with closing(built.trainer.engine):
        done = resume(orders.spec.checkpoint, built.origin, built.trainer, progress)
        finished = train(orders.spec, built, progress, done)
    if finished:
        reporter().send("done")
    leave()
    return finished


@dataclass(frozen=True)
class Built:
    """The parts of a run. `origin`: what its checkpoints say about where they come from."""

    trainer: Trainer
    evaluator: Evaluator | None
    workload: Workload
    origin: Origin


def _build(orders: Orders, ranks: Ranks, device: torch.device, store: Store) -> Built:
    """All parts. The blueprint, which may hold a whole copy of the initial values, is let go of here."""
    spec = orders.spec
    if spec.precision == "fp8":
        refuse_without_units(device)
    check_drives(spec.offload.path)
    blueprint = orders.blueprint()
    workload = build_workload(spec, blueprint, device)
    reporter().send("phase", phase="data")
    samples = open_data(spec.data, blueprint.vocab, ranks, store)
    reporter().send("phase", phase="build")
    mesh = make_mesh(spec.parallel.mesh, device)
    trainer, evaluator = build_trainer(spec, blueprint, samples.training, mesh, device), None
    if spec.evaluation.every_steps and samples.validation is not None:
        evaluator = build_evaluator(spec, blueprint, trainer, samples.validation, mesh, device)
    origin = orders.origin(data_origin(samples.training, spec.data.seq_len, spec.train.seed))
    return Built(trainer, evaluator, workload, origin)


def train(spec: RunSpec, built: Built, progress: Progress, done: int) -> bool:
    """Steps `done` + 1 to the last, and a checkpoint wherever one is due.

    SIGTERM on any rank has all of them end after the same step, with a checkpoint of it: False then.
    """
    stop, trainer = StopRequest(), built.trainer
    checkpoints = Checkpoints(spec.checkpoint, built.origin, progress)
    progress.memory(trainer.engine.memory())
    progress.phase("train")
    stop.listen()
    for step in range(done + 1, spec.train.steps + 1):
        began = time.perf_counter()
        result = trainer.step(step, lambda: stop() or checkpoints.must_stop())
        step_s = time.perf_counter() - began
        evaluated = None
        if built.evaluator is not None and (
            step % spec.evaluation.every_steps == 0 or step == spec.train.steps
        ):
            evaluated = evaluate(step, built.evaluator, progress)
        progress.step(step, result, step_s, evaluated)
        if step == done + 2:  # gradients and optimizer state of a step have all been there once
            progress.memory(trainer.engine.memory())
        saves = is_due(step, spec.checkpoint, spec.train.steps) or (result.stop and spec.checkpoint.is_on)
        if trainer.replicas is not None and compares(step, spec.train.check_replicas_every, saves):
            trainer.replicas.check(step)
        if saves:
            checkpoints.save(step, trainer)
        checkpoints.look()
        if result.stop and step < spec.train.steps:
            checkpoints.settle(last=step)
            progress.event("stop", f"stopped after step {step}: SIGTERM", step=step)
            return False
    checkpoints.settle(last=spec.train.steps)
    progress.say(f"done: {spec.train.steps} steps, {progress.tokens_seen:,} tokens")
    return True


def evaluate(step: int, evaluator: Evaluator, progress: Progress) -> Evaluated:
    """Evaluate and say so. Collective."""
    progress.phase("eval")
    found = evaluator.run()
    progress.event(
        "eval",
        f"evaluation after step {step}: loss {found.loss:.4f} over {found.tokens:,} tokens, {found.seconds:.1f} s",
        step=step,
        loss=found.loss,
        tokens=found.tokens,
        seconds=found.seconds,
    )
    progress.phase("train")
    return found


def _description(spec: RunSpec, device: torch.device) -> str:
    train, data = spec.train, spec.data
    count = known_parameters(spec.model)
    counted = "" if count is None else f"{count:,} parameters in "
    source = "synthetic data" if data.synthetic else f"data {', '.join(data.text or data.tokens)}"
    return (
        f"{spec.name}: {counted}{spec.precision}, "
        f"ZeRO-{spec.parallel.zero} on {_ranks(spec)} ({device.type}); {source}; "
        f"{train.steps} steps of {train.global_batch} x {data.seq_len} tokens "
        f"(micro-batch {train.micro_batch}, accumulation {train.accumulation}){_away(spec.offload)}"
    )


def _away(offload: OffloadSpec) -> str:
    if offload.optimizer == "none":
        return ""
    place = "host memory" if offload.optimizer == "cpu" else ", ".join(offload.path)
    return f"; {offload.optimizer_fraction:.0%} of optimizer state in {place}"


def _ranks(spec: RunSpec) -> str:
    """How many ranks there are, and along which axes where data parallelism is not the only one."""
    axes = [f"{axis} {size}" for axis, size in spec.parallel.mesh.sizes().items() if size > 1]
    ranks = f"{spec.world_size} rank" + "s" * (spec.world_size > 1)
    return ranks if spec.parallel.dp_shard == spec.world_size else f"{ranks}, {' x '.join(axes)}"


def end(code: int) -> NoReturn:
    """End the process here: taking torch apart takes a third of a second a rank, and everything is written."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    end(main())
