"""Matrix products in fp8, emulated on the CPU: the same training on any ZeRO stage, near that in bf16."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from ranks import run_ranks
from torch import nn

from distperf.errors import DistperfError
from distperf.model.init import fill_for
from distperf.model.llama import build_model
from distperf.model.loss import loss_sum
from distperf.parallel.engine import build_engine
from distperf.parallel.fp8 import apply_fp8, refuse_without_units
from distperf.parallel.mesh import make_mesh
from distperf.recipe.mesh import MeshShape
from distperf.recipe.runspec import ModelSpec, OptimizerSpec, ScheduleSpec

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # of torchao's own import

MODEL = ModelSpec("llama", 2, 32, 4, 2, 64, 64, False, 1e4, 1e-5, 0.0)
OPTIMIZER = OptimizerSpec("adamw", 3e-3, (0.9, 0.95), 1e-8, 0.1, ScheduleSpec("constant", 0, 0, 0.0), ())
CPU = torch.device("cpu")


def losses(zero: int, fp8: bool, steps: int = 12) -> list[float]:
    """Each rank trains on the same batch, so that activations have the same scales on any number of ranks."""
    size = dist.get_world_size() if dist.is_initialized() else 1
    model = build_model(MODEL)
    if fp8:
        apply_fp8(model, emulate=True)
    engine = build_engine(
        [model],
        zero=zero,
        precision="fp8" if fp8 else "bf16",
        mesh=make_mesh(MeshShape(dp_shard=size), CPU),
        device=CPU,
        optimizer=OPTIMIZER,
        accumulation=1,
        fill=fill_for(MODEL, 1),
    )
    tokens = torch.randint(64, (4, 17), generator=torch.Generator().manual_seed(0))
    found = []
    for _ in range(steps):
        loss = loss_sum(engine.parts[0](tokens[:, :-1]), tokens[:, 1:])
        engine.backward(loss, last=True)
        engine.finish()
        engine.step(OPTIMIZER.lr, 1 / (tokens[:, 1:].numel() * size))
        found.append(loss.item() / tokens[:, 1:].numel())
    return found


def on_two_ranks() -> dict[int, list[float]]:
    return {zero: losses(zero, fp8=True) for zero in range(4)}


def test_every_stage_trains_in_fp8_as_one_process_does():
    """Stages 0 to 2 to the bit on two ranks; all as one rank does, near bf16 but not equal to it; and it learns."""
    one, half = losses(0, fp8=True), losses(0, fp8=False)
    assert one != half
    assert one == pytest.approx(half, rel=0.03)
    assert one[-1] < one[0] - 0.5
    for found in run_ranks(on_two_ranks, 2):
        assert found[0] == found[1] == found[2]
        for zero, values in found.items():
            assert values == pytest.approx(one, rel=5e-3), zero


def test_only_linear_layers_of_blocks_are_taken_over():
    """Names and shapes of parameters stay, the head stays in bf16; odd sizes are left alone, or refused by name."""
    plain, model = build_model(MODEL), build_model(MODEL)
    apply_fp8(model, emulate=True)
    shapes = [{name: p.shape for name, p in m.named_parameters()} for m in (plain, model)]
    assert shapes[0] == shapes[1]
    taken = {name for name, module in model.named_modules() if type(module).__name__ == "Float8Linear"}
    assert len(taken) == 14
    assert "lm_head" not in taken
    odd = nn.Sequential(nn.ModuleList([nn.Linear(12, 16)]))
    with pytest.raises(DistperfError, match=r"no block of this model has an nn.Linear with sizes .* 16"):
        apply_fp8(odd)


def test_a_device_without_fp8_units_is_refused():
    """With the device, the reason and the way out."""
    with pytest.raises(
        DistperfError, match=r"this device \(cpu\) has no fp8 matrix units; set precision: bf16"
    ):
        refuse_without_units(CPU)
