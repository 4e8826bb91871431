"""Starts distperf.train as real ranks, without a launcher, and collects what they report."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import multiprocessing
import os
import socket
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, TextIO

from distperf.recipe.mesh import fit_mesh
from distperf.recipe.runspec import (
    CheckpointSpec,
    DataSpec,
    EvalSpec,
    ModelSpec,
    OffloadSpec,
    OptimizerSpec,
    ParallelSpec,
    RunSpec,
    ScheduleSpec,
    TrainSpec,
    to_json,
)

SYNTHETIC = DataSpec(
    text=(),
    tokens=(),
    mixture=(),
    factory=None,
    args={},
    synthetic=True,
    tokenizer="byte",
    field="text",
    seq_len=16,
    boundary="mask",
    workers=0,
    worker_timeout_s=25.0,
    validation_share=0.0,
    validation=(),
)
TINY = ModelSpec("llama", 2, 32, 4, 2, 64, 128, False, 10000.0, 1e-5, 0.0)


def data_spec(**fields: Any) -> DataSpec:
    """What is read, other than synthetic ids; 16 tokens a sample."""
    return dataclasses.replace(SYNTHETIC, **{"synthetic": False, **fields})


def make_spec(
    tmp: Path,
    *,
    world: int = 1,
    zero: int = 0,
    accumulation: int = 1,
    steps: int = 20,
    axes: dict[str, int] | None = None,
    **changes: Any,
) -> RunSpec:
    """A tiny fp32 run on synthetic data, 12 samples a step; `axes` but for dp_shard; `changes` replace fields."""
    mesh = fit_mesh(world, **(axes or {}))
    replicas = mesh.data_parallel_size
    checkpoint = CheckpointSpec(every_steps=0, save_last=False, keep=2, dir=str(tmp / "checkpoints"))
    spec = RunSpec(
        schema=1,
        name="tiny",
        run_id="tiny-1",
        world_size=world,
        model=TINY,
        init=None,
        frozen=(),
        data=SYNTHETIC,
        train=TrainSpec(steps, 12, 12 // replicas // accumulation, accumulation, 1, 1.0, False, 7),
        optimizer=OptimizerSpec(
            "adamw", 3e-3, (0.9, 0.95), 1e-8, 0.1, ScheduleSpec("cosine", 5, steps - 5, 0.0), ()
        ),
        precision="fp32",
        parallel=ParallelSpec(zero, **mesh.sizes(), cp_method="ulysses", pp_schedule="1f1b", pp_layers=()),
        activation_checkpoint="none",
        checkpoint=checkpoint,
        offload=OffloadSpec("none", 1.0, ()),
        evaluation=EvalSpec(0, None, 1),
        reasons={},
    )
    return dataclasses.replace(spec, **changes)


@dataclass
class Rank:
    """A running rank and the records it reported so far."""

    process: BaseProcess
    records: list[dict[str, Any]] = field(default_factory=list)
    output: str = ""
    readers: list[threading.Thread] = field(default_factory=list)

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [record for record in self.records if record["kind"] == kind]


@dataclass
class Ranks:
    """All ranks of one attempt."""

    ranks: list[Rank]

    def wait(self, timeout_s: float = 90) -> list[int]:
        """Exit codes, once all ranks have ended."""
        deadline = time.monotonic() + timeout_s
        for rank in self.ranks:
            rank.process.join(max(0.1, deadline - time.monotonic()))
            assert rank.process.exitcode is not None, self.output
            for reader in rank.readers:
                reader.join()
        return [rank.process.exitcode for rank in self.ranks if rank.process.exitcode is not None]

    def wait_until(self, done: Callable[[], bool], timeout_s: float = 60) -> None:
        deadline = time.monotonic() + timeout_s
        while not done():
            assert time.monotonic() < deadline, self.output
            time.sleep(0.01)

    def kill(self) -> None:
        for rank in self.ranks:
            rank.process.kill()
            rank.process.join()

    def losses(self) -> dict[int, float]:
        return {record["step"]: record["loss"] for record in self.ranks[0].of("metrics")}

    @property
    def output(self) -> str:
        return "\n".join(rank.output for rank in self.ranks)


@contextlib.contextmanager
def training(
    spec: RunSpec, *, attempt: int = 1, resume: str = "", nodes: Sequence[Path] = (), **environ: str
) -> Iterator[Ranks]:
    """Ranks of `spec`; none is left afterwards. `nodes`: the memory folders of the nodes that they are spread over."""
    port, per_node = str(free_port()), spec.world_size // max(1, len(nodes))
    ranks = Ranks(
        [
            _start(spec, rank, port, attempt, resume, {**environ, **_on_node(nodes, rank // per_node)})
            for rank in range(spec.world_size)
        ]
    )
    try:
        yield ranks
    finally:
        ranks.kill()


def train(spec: RunSpec, *, timeout_s: float = 90, **options: Any) -> Ranks:
    """Run to the end and insist on success."""
    with training(spec, **options) as ranks:
        codes = ranks.wait(timeout_s)
        assert not any(codes), (codes, ranks.output)
        return ranks


def _on_node(nodes: Sequence[Path], node: int) -> dict[str, str]:
    return {"GROUP_RANK": str(node), "DISTPERF_MEMORY": str(nodes[node])} if nodes else {}


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _start(spec: RunSpec, rank: int, port: str, attempt: int, resume: str, environ: dict[str, str]) -> Rank:
    place = {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(spec.world_size),
        "LOCAL_WORLD_SIZE": str(spec.world_size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "DISTPERF_ADDRESS": "127.0.0.1",
        "DISTPERF_RUNSPEC": to_json(spec),
        "DISTPERF_ATTEMPT": str(attempt),
        "DISTPERF_RESUME": resume,
    }
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["distperf.train"])  # the import of torch is most of what a rank costs
    records, report = context.Pipe(duplex=False)
    output, stdout = context.Pipe(duplex=False)
    process = context.Process(target=_rank_main, args=({**place, **environ}, report, stdout), daemon=True)
    process.start()
    report.close()
    stdout.close()
    started = Rank(process)
    for target, pipe in ((_read_records, records), (_read_output, output)):
        reader = threading.Thread(
            target=target, args=(started, os.fdopen(os.dup(pipe.fileno()))), daemon=True
        )
        pipe.close()
        reader.start()
        started.readers.append(reader)
    return started


def _rank_main(environ: dict[str, str], report: Connection, stdout: Connection) -> None:
    """What `python -m distperf.train` does, in a process forked from one that has imported it."""
    import torch

    from distperf.train import main

    os.environ.update(environ, DISTPERF_REPORT_FD=str(report.fileno()))
    os.dup2(stdout.fileno(), 1)
    os.dup2(stdout.fileno(), 2)
    stdout.close()
    compiles = json.loads(environ["DISTPERF_RUNSPEC"])["train"]["compile"]
    warnings.simplefilter("ignore" if compiles else "error")  # torch's compiler sets off warnings of its own
    torch.set_num_threads(1)
    sys.exit(main())


def _read_records(rank: Rank, stream: TextIO) -> None:
    with stream:
        for line in stream:
            rank.records.append(json.loads(line))


def _read_output(rank: Rank, stream: TextIO) -> None:
    with stream:
        for line in stream:
            rank.output += line
