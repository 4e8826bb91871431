"""`python -m distperf.train`: one rank of a run, from its orders to its last checkpoint."""

from __future__ import annotations

import os
import sys
import time
from contextlib import closing
from typing import NoReturn

from distperf.build import Orders
from distperf.built import Built, build_run
from distperf.checkpoint.memory.place import Place, meet
from distperf.contract import EXIT_FAILED, EXIT_OK, EXIT_TERMINATED, reporter
from distperf.evaluation import Evaluator
from distperf.failure import report_failure
from distperf.introduction import introduction
from distperf.measure import stopwatch
from distperf.measure.profiler import StepProfiler
from distperf.measure.progress import Evaluated, Progress, metrics_of
from distperf.process_group import Ranks, join, leave
from distperf.recipe.runspec import RunSpec
from distperf.remembering import Remembering
from distperf.requests import Asked, Requests, listen
from distperf.saving import Checkpoints, compares, is_due, resume
from distperf.stop import StopRequest


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
    requests = listen()
    ranks = Ranks.from_env()
    orders = Orders.from_env(ranks)
    device, store = join(ranks)
    built, fill = build_run(orders, ranks, device, store)
    progress = Progress(reporter(), ranks.rank, orders.attempt, built.workload)
    progress.say(introduction(orders.spec, device))
    memory = meet(ranks.node_rank) if orders.spec.checkpoint.memory.every_steps else None
    with closing(built.trainer.engine):
        done = resume(orders.spec.checkpoint, built.origin, built.trainer, fill, progress, memory)
        del fill
        with stopwatch.running(device):
            finished = train(orders.spec, built, progress, memory, done, requests)
    if finished:
        reporter().send("done")
    leave()
    return finished


def train(
    spec: RunSpec, built: Built, progress: Progress, memory: Place | None, done: int, requests: Requests
) -> bool:
    """Steps `done` + 1 to the last, and a checkpoint wherever one is due, on disk or in `memory`.

    SIGTERM on any rank has all of them end after the same step, with a checkpoint of it: False then. A request to
    save on any rank has all of them save after the same step.
    """
    stop, trainer = StopRequest(), built.trainer
    profiler = StepProfiler(requests, reporter(), built.device)
    checkpoints = Checkpoints(spec.checkpoint, built.origin, progress)
    remembering = Remembering(spec.checkpoint.memory, memory, built.origin, trainer, progress)
    progress.memory(trainer.engine.memory())
    progress.phase("train")
    stop.listen()
    for step in range(done + 1, spec.train.steps + 1):
        began = time.perf_counter()
        result = trainer.step(
            step,
            lambda: Asked(stop() or checkpoints.must_stop(), requests.take_save(), profiler.waits()),
        )
        step_s = time.perf_counter() - began
        evaluated = None
        if built.evaluator is not None and (
            step % spec.evaluation.every_steps == 0 or step == spec.train.steps
        ):
            evaluated = evaluate(step, built.evaluator, progress)
        progress.step(step, result, step_s, evaluated)
        profiler.after_step(result.asked.profile)
        if step == done + 2:  # gradients and optimizer state of a step have all been there once
            progress.memory(trainer.engine.memory())
        asked = result.asked.stop or result.asked.save
        saves = is_due(step, spec.checkpoint, spec.train.steps) or (asked > 0 and spec.checkpoint.is_on)
        if trainer.replicas is not None and compares(step, spec.train.check_replicas_every, saves):
            trainer.replicas.check(step)
        with stopwatch.CHECKPOINT:
            if remembering.is_due(step) and not result.asked.stop:
                remembering.keep(step)
            if saves:
                checkpoints.save(step, trainer, metrics_of(result, evaluated))
            checkpoints.look()
        if result.asked.stop and step < spec.train.steps:
            remembering.settle()
            checkpoints.settle(last=step)
            progress.event("stop", f"stopped after step {step}: SIGTERM", step=step)
            return False
    remembering.settle()
    checkpoints.settle(last=spec.train.steps)
    progress.say(f"done: {spec.train.steps} steps, {progress.tokens_seen:,} tokens")
    return True


def evaluate(step: int, evaluator: Evaluator, progress: Progress) -> Evaluated:
    """Evaluate and say so. Collective."""
    progress.phase("eval")
    with stopwatch.EVALUATION:
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


def end(code: int) -> NoReturn:
    """End the process here: taking torch apart takes a third of a second a rank, and everything is written."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    end(main())
