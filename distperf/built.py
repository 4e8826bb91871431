"""All parts of a run, built: the order in which ranks agree on data, meet along the axes, and make their parts."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch._C._distributed_c10d import Store

from distperf.build import Orders, build_evaluator, build_trainer, build_workload
from distperf.checkpoint.manifest import Origin
from distperf.contract import reporter
from distperf.data.store import data_origin
from distperf.data.together import open_data
from distperf.evaluation import Evaluator
from distperf.measure.progress import Workload
from distperf.model.init import Fill
from distperf.offload.keeping import check_drives
from distperf.parallel.fp8 import refuse_without_units
from distperf.parallel.mesh import make_mesh
from distperf.process_group import Ranks
from distperf.trainer import Trainer


@dataclass(frozen=True)
class Built:
    """The parts of a run. `trainer`: without values yet. `origin`: what its checkpoints say of where they come from."""

    trainer: Trainer
    evaluator: Evaluator | None
    workload: Workload
    origin: Origin
    device: torch.device


def build_run(orders: Orders, ranks: Ranks, device: torch.device, store: Store) -> tuple[Built, Fill]:
    """All parts, and the initial values, which a run that goes on from a checkpoint does without.

    They may be a whole copy of the model: not to be held on to.
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
    trainer, evaluator = build_trainer(spec, blueprint, samples.training, mesh, device, filled=False), None
    if spec.evaluation.every_steps and samples.validation is not None:
        evaluator = build_evaluator(spec, blueprint, trainer, samples.validation, mesh, device)
    origin = orders.origin(data_origin(samples.training, spec.data.seq_len, spec.train.seed))
    return Built(trainer, evaluator, workload, origin, device), blueprint.fill
