"""`python -m distperf.train`: one rank of a run, from its orders to its last checkpoint."""

from __future__ import annotations

import os
import sys
import time
from contextlib import closing
from typing import NoReturn

import torch
from torch._C._distributed_c10d import Store

from distperf.build import Orders, build_trainer, build_workload
from distperf.checkpoint.manifest import Origin
from distperf.contract import EXIT_FAILED, EXIT_OK, EXIT_TERMINATED, reporter
from distperf.data.store import DataOrigin, data_origin
from distperf.data.together import open_data
from distperf.failure import report_failure
from distperf.measure.progress import Progress, Workload
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
    trainer, workload, data = _build(orders, ranks, device, store)
    progress, origin = Progress(reporter(), ranks.rank, orders.attempt, workload), orders.origin(data)
    progress.say(_description(orders.spec, device))
    with closing(trainer.engine):
        done = resume(orders.spec.checkpoint, origin, trainer, progress)
        finished = train(orders.spec, origin, trainer, progress, done)
    if finished:
        reporter().send("done")
    leave()
    return finished


def _build(
    orders: Orders, ranks: Ranks, device: torch.device, store: Store
) -> tuple[Trainer, Workload, DataOrigin]:
    """Trainer, workload and what the data is.

    The blueprint, which may hold a whole copy of the initial values, is let go of here.
    """
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
    origin = data_origin(samples, spec.data.seq_len, spec.train.seed)
    return build_trainer(spec, blueprint, samples, mesh, device), workload, origin


def train(spec: RunSpec, origin: Origin, trainer: Trainer, progress: Progress, done: int) -> bool:
    """Steps `done` + 1 to the last, and a checkpoint wherever one is due.

    SIGTERM on any rank has all of them end after the same step, with a checkpoint of it: False then.
    """
    stop = StopRequest()
    checkpoints = Checkpoints(spec.checkpoint, origin, progress)
    progress.memory(trainer.engine.memory())
    progress.phase("train")
    stop.listen()
    for step in range(done + 1, spec.train.steps + 1):
        began = time.perf_counter()
        result = trainer.step(step, lambda: stop() or checkpoints.must_stop())
        progress.step(step, result, time.perf_counter() - began)
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
