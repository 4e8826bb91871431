"""From a RunSpec to the parts of a run. Each part gets only what it needs of the spec."""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass

import torch
import torch.distributed as dist

from distperf.assembly import Assembly, OwnRows, assemble, own_stages
from distperf.checkpoint.manifest import Origin
from distperf.contract import ATTEMPT_ENV, RUNSPEC_ENV
from distperf.data.loader import Loader
from distperf.data.store import DataOrigin, SampleStore
from distperf.data.validation import ValidationBatches
from distperf.errors import DistperfError, MeshError
from distperf.evaluation import Evaluator, Forward
from distperf.measure.peaks import peak_flops_per_s
from distperf.measure.progress import Workload
from distperf.measure.replicas import Replicas
from distperf.model.blueprint import Blueprint, blueprint_of, refuse_unmatched
from distperf.model.init import Fill
from distperf.model.loss import loss_sum
from distperf.offload.keeping import Offload, rank_files
from distperf.optim.schedules import lr_at
from distperf.parallel.engine import DTYPES, Engine, build_engine
from distperf.parallel.forward import ForwardPipeline, owners_of
from distperf.parallel.mesh import Mesh
from distperf.parallel.pipeline import Pipelined
from distperf.parallel.stage import Flow
from distperf.passes import Batches, Passes, Serial
from distperf.precision.scaling import LossScale
from distperf.process_group import Ranks
from distperf.recipe.runspec import HfSpec, ModelFamily, OptimizerSpec, RunSpec, from_json
from distperf.recipe.schedules import SCHEDULES
from distperf.recipe.stages import held_stages
from distperf.trainer import Scaled, Trainer


@dataclass(frozen=True)
class Orders:
    """What this rank was told through its environment: the run, and which attempt this is."""

    spec: RunSpec
    attempt: int

    @classmethod
    def from_env(cls, ranks: Ranks) -> Orders:
        """Read DISTPERF_RUNSPEC and DISTPERF_ATTEMPT.

        Raises:
            DistperfError: they are not there or not of this version.
            MeshError: the spec was resolved for another number of ranks.
        """
        try:
            spec = from_json(RunSpec, os.environ[RUNSPEC_ENV])
            attempt = int(os.environ.get(ATTEMPT_ENV) or "1")
        except KeyError as error:
            raise DistperfError(
                f"nothing to train: {RUNSPEC_ENV} is not set. Start with `distperf launch`"
            ) from error
        except (ValueError, TypeError, AttributeError) as error:
            raise DistperfError(f"{RUNSPEC_ENV} or {ATTEMPT_ENV} cannot be read: {error}") from error
        if spec.world_size != ranks.world_size:
            raise MeshError(f"the run was planned for {spec.world_size} ranks and {ranks.world_size} started")
        return cls(spec, attempt)

    def blueprint(self) -> Blueprint:
        """The model to train.

        Raises:
            DistperfError: it cannot be had, or a pattern of the recipe names none of its parameters.
        """
        spec = self.spec
        blueprint = blueprint_of(spec.model, spec.train.seed, spec.frozen, spec.init)
        for at, group in enumerate(spec.optimizer.groups):
            refuse_unmatched(f"optimizer.groups[{at}].match", group.match, blueprint.names)
        return blueprint

    def origin(self, data: DataOrigin) -> Origin:
        """What this attempt's checkpoints say about their origin."""
        spec = self.spec
        return Origin(
            run_id=spec.run_id,
            name=spec.name,
            attempt=self.attempt,
            world_size=spec.world_size,
            model=dataclasses.asdict(_located(spec.model)),
            precision=spec.precision,
            zero=spec.parallel.zero,
            data=dataclasses.asdict(data),
        )


def _located(model: ModelFamily) -> ModelFamily:
    """With a path that means the same from other folders."""
    return HfSpec(model.family, os.path.abspath(model.path)) if isinstance(model, HfSpec) else model


def build_trainer(
    spec: RunSpec,
    blueprint: Blueprint,
    samples: SampleStore,
    mesh: Mesh,
    device: torch.device,
    *,
    filled: bool = True,
) -> Trainer:
    """Model and engine of this rank, and the trainer that holds them. Collective.

    `filled`: with the blueprint's initial values; else `engine.fill`, or a checkpoint, follows.

    Raises:
        DistperfError: the model cannot be divided as the recipe asks.
        DataError: there is too little data.
        OffloadError: a drive is too small.
    """
    assembly = assemble(spec, blueprint, mesh, device)
    fill = blueprint.fill if filled else None
    engine = _build_engine(spec, blueprint, fill, assembly, mesh, device)
    loader = Loader(spec.data, samples, spec.train, _data_rank(mesh), mesh.shape.data_parallel_size)
    batches = OwnRows(loader, mesh, spec.parallel.cp_method)
    scaled = Scaled(LossScale(), spec.train.global_batch * spec.data.seq_len)
    return Trainer(
        engine=engine,
        passes=_build_passes(spec, blueprint, engine, assembly, batches, mesh, device),
        stream=loader.stream,
        lr_at=_Schedule(spec.optimizer, spec.train.steps),
        grad_clip=spec.train.grad_clip,
        counts=mesh.coordinates["tp"] == 0,
        scaled=scaled if spec.precision == "fp16" else None,
        replicas=Replicas(assembly.parts, blueprint.shared if mesh.shape.pp > 1 else ()),
    )


def build_evaluator(
    spec: RunSpec, blueprint: Blueprint, trainer: Trainer, held: SampleStore, mesh: Mesh, device: torch.device
) -> Evaluator:
    """What evaluates the trainer's model on samples that are held back."""
    size, parts = mesh.shape.data_parallel_size, trainer.engine.parts
    dealt = ValidationBatches(spec.data, held, spec.evaluation, spec.train.seed, _data_rank(mesh), size)
    forward: Forward = parts[0]
    if (group := mesh.group("pp")) is not None:
        layers, schedule, ranks = spec.parallel.pp_layers, spec.parallel.pp_schedule, mesh.shape.pp
        owners = owners_of(lambda rank: held_stages(layers, schedule, ranks, rank), ranks)
        flow = _flow(spec, blueprint, mesh, spec.evaluation.micro_batch)
        forward = ForwardPipeline(parts, own_stages(spec, mesh), owners, flow, group, device)
    batches = OwnRows(dealt, mesh, spec.parallel.cp_method)
    counts = mesh.coordinates["tp"] == 0
    return Evaluator(parts, forward, batches, dealt.count, loss_sum, device, counts=counts)


def _data_rank(mesh: Mesh) -> int:
    """Place among the ranks that train on different samples."""
    return mesh.coordinates["dp_replicate"] * mesh.shape.dp_shard + mesh.coordinates["dp_shard"]


def build_workload(spec: RunSpec, blueprint: Blueprint, device: torch.device) -> Workload:
    """What the progress lines and MFU are reckoned with."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    return Workload(
        steps=spec.train.steps,
        positions=spec.train.global_batch * spec.data.seq_len,
        flops_per_token=blueprint.flops_per_token(spec.data.seq_len) if blueprint.flops_per_token else None,
        world_size=spec.world_size,
        peak_flops_per_s=peak_flops_per_s(name, spec.precision),
    )


def _build_engine(
    spec: RunSpec,
    blueprint: Blueprint,
    fill: Fill | None,
    assembly: Assembly,
    mesh: Mesh,
    device: torch.device,
) -> Engine:
    schedule = SCHEDULES[spec.parallel.pp_schedule]
    return build_engine(
        assembly.parts,
        zero=spec.parallel.zero,
        precision=spec.precision,
        mesh=mesh,
        device=device,
        optimizer=spec.optimizer,
        accumulation=spec.train.accumulation,
        fill=fill,
        tied=blueprint.shared if mesh.shape.pp > 1 else (),
        ends_apart=not schedule.v_shaped,
        reshards=mesh.shape.pp == 1 or not schedule.splits_backward,
        offload=Offload(
            spec.offload.optimizer,
            spec.offload.optimizer_fraction,
            rank_files(spec.offload.path, spec.run_id, dist.get_rank()),
            params=spec.offload.params,
        ),
    )


def _build_passes(
    spec: RunSpec,
    blueprint: Blueprint,
    engine: Engine,
    assembly: Assembly,
    batches: Batches,
    mesh: Mesh,
    device: torch.device,
) -> Passes:
    group, accumulation, draws = mesh.group("pp"), spec.train.accumulation, assembly.draws
    if group is None:
        return Serial(engine, batches, loss_sum, accumulation, draws, device)
    return Pipelined(
        engine,
        assembly.stages,
        spec.parallel.pp_schedule,
        flow=_flow(spec, blueprint, mesh, spec.train.micro_batch),
        batches=batches,
        loss_sum=loss_sum,
        accumulation=accumulation,
        group=group,
        device=device,
        on_micro=lambda step, micro: draws.at(batches.first(step, micro)),
    )


def _flow(spec: RunSpec, blueprint: Blueprint, mesh: Mesh, samples: int) -> Flow:
    """What goes through a pipeline, in micro-batches of so many samples."""
    assert blueprint.width is not None, "a model that cannot be cut has no stages"
    rows = spec.data.seq_len // mesh.shape.cp
    shared = mesh.shape.tp if blueprint.tensor_plan is not None and blueprint.tensor_plan.sequence else 1
    return Flow((samples, rows), (samples, rows // shared, blueprint.width), DTYPES[spec.precision])


@dataclass(frozen=True)
class _Schedule:
    """Learning rate as a function of the step alone, so that a resume needs nothing else."""

    optimizer: OptimizerSpec
    steps: int

    def __call__(self, step: int) -> float:
        return lr_at(step, self.optimizer.schedule, self.optimizer.lr, self.steps)
