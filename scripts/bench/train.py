"""Training speed and memory of every ZeRO stage against PyTorch's own tool for the same stage, in one run.

    python scripts/bench/train.py [--steps 10] [--precision fp32 bf16] [--accumulation 1] [--stage 0 1 2 3]
                                  [--deepspeed] [--offload cpu|nvme [--path FOLDER]] [--out FILE]

Times: two ranks (one thread each) hold all variants and take steps in turn, so that a slow minute hits both; medians.
CPU time of a step tells the same on a machine that others use too. Memory: peak RSS of a rank that runs one variant
alone, in a fresh process. DeepSpeed is a peer where it is installed and asked for (it is none of our dependencies).
With --offload the optimizer's state rests elsewhere, in distperf and in the one peer that does this, DeepSpeed.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import resource
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from distperf.model.init import fill_for
from distperf.model.llama import build_model
from distperf.model.loss import loss_sum
from distperf.offload.keeping import Offload, rank_files
from distperf.optim.clip import clip_factor, global_norm_sq
from distperf.parallel.engine import build_engine
from distperf.parallel.mesh import make_mesh
from distperf.recipe.mesh import MeshShape
from distperf.recipe.runspec import ModelSpec, OptimizerSpec, ScheduleSpec

RANKS, BATCH, LENGTH, LR, MAX_NORM = 2, 8, 256, 3e-4, 1.0
MODEL = ModelSpec(
    family="llama",
    layers=12,
    hidden=384,
    heads=6,
    kv_heads=6,
    ffn=1024,
    vocab=8192,
    tied_embedding=False,
    rope_theta=1e4,
    norm_eps=1e-5,
    dropout=0.0,
)
OPTIMIZER = OptimizerSpec("adamw", LR, (0.9, 0.95), 1e-8, 0.1, ScheduleSpec("constant", 0, 0, 0.0), ())
FILL = fill_for(MODEL, seed=0)
PEERS = {
    0: "DDP",
    1: "DDP + ZeroRedundancyOptimizer",
    2: "fully_shard, reshard_after_forward=False",
    3: "fully_shard",
}
DEEPSPEED = "DeepSpeed"
ADAM = {"lr": LR, "betas": OPTIMIZER.betas, "eps": OPTIMIZER.eps, "fused": True}
Step = Callable[[list[tuple[Tensor, Tensor]]], float]  # micro-batches of this rank -> loss of this rank


def ours(stage: int, options: argparse.Namespace) -> Step:
    precision, accumulation = options.now
    group, cpu = dist.group.WORLD, torch.device("cpu")
    engine = build_engine(
        [build_model(MODEL)],
        zero=stage,
        precision=precision,
        mesh=make_mesh(MeshShape(dp_shard=dist.get_world_size()), cpu),
        device=cpu,
        optimizer=OPTIMIZER,
        accumulation=accumulation,
        fill=FILL,
        offload=Offload(options.offload, files=files_of(options)),
    )

    def step(micro_batches: list[tuple[Tensor, Tensor]]) -> float:
        total = 0.0
        for index, (inputs, targets) in enumerate(micro_batches):
            loss = loss_sum(engine.parts[0](inputs), targets) / (BATCH * LENGTH)
            engine.backward(loss, last=index == accumulation - 1)
            total += loss.item()
        engine.finish()
        norm_sq = global_norm_sq(engine.grad_norm_sq(), group)
        engine.step(LR, clip_factor(norm_sq, MAX_NORM))
        return total

    return step


def files_of(options: argparse.Namespace) -> tuple[Path, ...]:
    """Where a rank's state rests, with nvme."""
    return rank_files([options.path], "bench", dist.get_rank()) if options.offload == "nvme" else ()


def theirs(stage: int, options: argparse.Namespace) -> Step:
    """What a user writes by hand: bf16 by autocast under DDP, by a policy under fully_shard; same sums and clipping."""
    precision, accumulation = options.now
    model = filled()
    wrapped = _sharded(model, stage, precision) if stage >= 2 else DistributedDataParallel(model)
    parameters = list(wrapped.parameters())
    if stage == 1:
        optimizer = ZeroRedundancyOptimizer(decayed(parameters), torch.optim.AdamW, **ADAM)
    else:
        optimizer = torch.optim.AdamW(decayed(parameters), **ADAM)
    autocast = precision == "bf16" and stage < 2
    # DDP divides by the number of ranks; fully_shard is told to add.
    tokens = BATCH * LENGTH / (RANKS if stage < 2 else 1)

    def step(micro_batches: list[tuple[Tensor, Tensor]]) -> float:
        total = 0.0
        for index, (inputs, targets) in enumerate(micro_batches):
            holds = stage < 2 and index < accumulation - 1
            with wrapped.no_sync() if holds else contextlib.nullcontext():
                with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                    logits = wrapped(inputs)
                loss = loss_sum(logits, targets) / tokens
                loss.backward()
            total += loss.item() * tokens / (BATCH * LENGTH)
        nn.utils.clip_grad_norm_(parameters, MAX_NORM)
        optimizer.step()
        optimizer.zero_grad()
        return total

    return step


def deepspeeds(stage: int, options: argparse.Namespace) -> Step:
    """DeepSpeed's engine around the same model and optimizer; it divides by ranks and micro-batches itself."""
    os.environ["DS_ACCELERATOR"] = "cpu"
    import deepspeed  # a peer, installed by hand
    from deepspeed.ops.adam import DeepSpeedCPUAdam

    precision, accumulation = options.now
    model = filled()
    config = {
        "train_micro_batch_size_per_gpu": BATCH // RANKS // accumulation,
        "gradient_accumulation_steps": accumulation,
        "gradient_clipping": MAX_NORM,
        "zero_optimization": {"stage": stage, **deepspeeds_offload(options)},
        "aio": {"block_size": 8 << 20, "queue_depth": 8, "intra_op_parallelism": 2, "use_gds": False},
        "bf16": {"enabled": precision == "bf16"},
        "zero_allow_untested_optimizer": True,
    }
    if options.offload == "none":
        optimizer = torch.optim.AdamW(decayed(list(model.parameters())), **ADAM)
    else:
        own = {key: value for key, value in ADAM.items() if key != "fused"}
        optimizer = DeepSpeedCPUAdam(decayed(list(model.parameters())), **own)
    engine, *_ = deepspeed.initialize(
        model=model, optimizer=optimizer, config=config, dist_init_required=False
    )

    def step(micro_batches: list[tuple[Tensor, Tensor]]) -> float:
        total = 0.0
        for inputs, targets in micro_batches:
            loss = loss_sum(engine(inputs), targets) / targets.numel()
            engine.backward(loss)
            engine.step()
            total += loss.item() * targets.numel() / (BATCH * LENGTH)
        return total

    return step


def deepspeeds_offload(options: argparse.Namespace) -> dict[str, object]:
    """Its names for what distperf is asked for, overlapped both ways, with buffers that hold the largest parameter."""
    if options.offload == "none":
        return {}
    drive = {"nvme_path": options.path, "pipeline_read": True, "pipeline_write": True, "buffer_count": 5}
    where = {"device": options.offload, "pin_memory": False}
    return {"offload_optimizer": where | (drive if options.offload == "nvme" else {})}


def filled() -> nn.Module:
    """The model with the weights that the run would begin with."""
    model = build_model(MODEL).to_empty(device="cpu")
    with torch.no_grad():
        for fqn, p in model.named_parameters():
            p.copy_(FILL(fqn, p.shape, 0, p.numel()).view(p.shape))
    return model


def decayed(parameters: list[nn.Parameter]) -> list[dict[str, object]]:
    """Parameter groups: matrices decay, vectors do not."""
    return [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": OPTIMIZER.weight_decay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]


def _sharded(model: nn.Module, stage: int, precision: str) -> nn.Module:
    mesh = init_device_mesh("cpu", (RANKS,))
    dtype = torch.bfloat16 if precision == "bf16" else None
    policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
    for module in (*model.layers, model):
        fully_shard(module, mesh=mesh, mp_policy=policy, reshard_after_forward=stage == 3)
    for module in (*model.layers, model):
        module.set_force_sum_reduction_for_comms(True)
        module.set_gradient_divide_factor(1.0)
    return model


MAKERS = {"ours": ours, "theirs": theirs, DEEPSPEED: deepspeeds}


def micro_batches(step: int, accumulation: int) -> list[tuple[Tensor, Tensor]]:
    tokens = torch.randint(MODEL.vocab, (BATCH, LENGTH + 1), generator=torch.Generator().manual_seed(step))
    own = tokens.chunk(RANKS)[dist.get_rank()].chunk(accumulation)
    return [(part[:, :-1], part[:, 1:]) for part in own]


def timed(step: Step, data: list[tuple[Tensor, Tensor]]) -> tuple[float, float, float]:
    """Seconds until all ranks are done, seconds this rank computed (all threads), and this rank's loss."""
    dist.barrier()
    start, computed = time.perf_counter(), time.process_time()
    loss = step(data)
    computed = time.process_time() - computed
    dist.barrier()
    return time.perf_counter() - start, computed, loss


def rank_main(rank: int, port: int, makers: list[tuple[str, int]], options: argparse.Namespace, out) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(RANKS))
    os.environ["LOCAL_RANK"] = str(rank)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    steps = [MAKERS[who](stage, options) for who, stage in makers]
    taken: list[list[tuple[float, float, float]]] = [[] for _ in steps]
    for index in range(options.steps + 1):
        data = micro_batches(index, options.now[1])
        for which in range(len(steps)) if index % 2 else reversed(range(len(steps))):
            taken[which].append(timed(steps[which], data))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    times = [[t for t, _, _ in one[1:]] for one in taken]
    computing = [statistics.median(c for _, c, _ in one[1:]) for one in taken]
    out.put((rank, times, computing, [one[0][2] for one in taken], peak))
    dist.destroy_process_group()


def run(
    makers: list[tuple[str, int]], options: argparse.Namespace
) -> tuple[list[list[float]], list[float], int]:
    """Of each variant the seconds of each step and its median CPU seconds (rank 0); the largest peak RSS in bytes."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    out = mp.get_context("spawn").SimpleQueue()
    mp.spawn(rank_main, (port, makers, options, out), RANKS)
    results = sorted(out.get() for _ in range(RANKS))
    for *_, losses, _ in results:
        assert max(losses) - min(losses) < 2e-3 * max(losses), f"variants differ: {losses}"
    return results[0][1], results[0][2], max(peak for *_, peak in results)


def compare(stage: int, options: argparse.Namespace) -> list[str]:
    """Rows of the table, one a peer."""
    everyone = ["ours", *options.peers]
    times, computing, _ = run([(who, stage) for who in everyone], options)
    few = argparse.Namespace(**{**vars(options), "steps": 2})
    rss = [0.0 if options.no_memory else run([(who, stage)], few)[2] / 1e6 for who in everyone]
    names = ["", *(PEERS[stage] if peer == "theirs" else peer for peer in options.peers)]
    return [
        f"| {options.now[0]} | ZeRO-{stage} | {names[peer]} | {rate(times[0])} | {rate(times[peer])} "
        f"| {paired(times[0], times[peer])} | {computing[peer] / computing[0]:.3f} "
        f"| {rss[0]:.0f} | {rss[peer]:.0f} |"
        for peer in range(1, len(everyone))
    ]


def rate(seconds: list[float]) -> str:
    """Tokens a second of the median step."""
    return f"{BATCH * LENGTH / statistics.median(seconds):.0f}"


def paired(mine: list[float], peers: list[float]) -> str:
    """How often as fast as the peer: median (least to most) over steps next to each other."""
    ratios = sorted(peer / own for own, peer in zip(mine, peers, strict=True))
    return f"{statistics.median(ratios):.3f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--precision", nargs="+", default=["fp32", "bf16"], choices=["fp32", "bf16"])
    parser.add_argument("--accumulation", type=int, default=1)
    parser.add_argument("--stage", nargs="+", type=int, default=[0, 1, 2, 3], choices=[0, 1, 2, 3])
    parser.add_argument("--deepspeed", action="store_true", help="as a second peer; it must be installed")
    parser.add_argument("--offload", default="none", choices=["none", "cpu", "nvme"])
    parser.add_argument("--path", help="folder on a drive, for nvme")
    parser.add_argument("--no-memory", action="store_true", help="times only")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if (options.offload == "nvme") != bool(options.path):
        parser.error("--offload nvme and --path go together")
    with tempfile.TemporaryDirectory(dir=options.path) as options.path:
        measure(options)


def measure(options: argparse.Namespace) -> None:
    """All tables that were asked for."""
    options.peers = ["theirs"] * (options.offload == "none") + [DEEPSPEED] * options.deepspeed
    os.environ["OMP_NUM_THREADS"] = "1"
    lines = [
        "| precision | stage | peer | tok/s | its tok/s | ratio (paired) | ratio (CPU time) | RSS, MB | its RSS |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for precision in options.precision:
        options.now = (precision, options.accumulation)
        for stage in options.stage:
            lines += compare(stage, options)
            print("\n".join(lines[-len(options.peers) :]), flush=True)
    if options.out:
        options.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
