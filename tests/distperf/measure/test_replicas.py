"""Weights that ranks must hold equal: one flipped bit on one rank is found, named, and nothing else is."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from ranks import run_ranks
from torch import Tensor, nn

from distperf.errors import DistperfError
from distperf.measure.replicas import CHUNK, Replicas, content_hash, local_part
from distperf.model.init import fill_for
from distperf.model.llama import build_model, tensor_plan
from distperf.parallel.engine import Engine, build_engine
from distperf.parallel.mesh import make_mesh
from distperf.parallel.tensor import apply_tensor_parallel
from distperf.recipe.mesh import MeshShape
from distperf.recipe.runspec import ModelSpec, OptimizerSpec, ScheduleSpec

MODEL = ModelSpec("llama", 2, 32, 4, 4, 64, 64, True, 1e4, 1e-5, 0.0)
OPTIMIZER = OptimizerSpec("adamw", 1e-2, (0.9, 0.95), 1e-8, 0.1, ScheduleSpec("constant", 0, 0, 0.0), ())
WORDS = {
    torch.float32: torch.int32,
    torch.bfloat16: torch.int16,
    torch.float64: torch.int64,
    torch.uint8: torch.uint8,
}


@given(
    st.sampled_from(list(WORDS)),
    st.sampled_from([1, 5, CHUNK - 1, CHUNK + 3]),
    st.integers(0, 2**20),
    st.integers(0, 63),
)
def test_any_flipped_bit_changes_the_hash(dtype, numel, at, bit):
    """In any dtype, at any place, any bit; flipped back it is the same again. Order and signs matter."""
    values = torch.arange(numel).mul(7).remainder(251).to(dtype)
    words = values.view(WORDS[dtype])
    before, bit = content_hash(values), bit % (8 * words.element_size())
    one = torch.ones((), dtype=words.dtype) << bit
    words[at % numel] ^= one
    assert content_hash(values) != before
    words[at % numel] ^= one
    assert content_hash(values) == before
    if numel > 3 and dtype != torch.uint8:
        assert content_hash(values.flip(0)) != before
        values[1:3] *= -1
        assert content_hash(values) != before


def flip_a_bit(tensor: Tensor) -> None:
    local_part(tensor).view(-1)[:1].view(torch.int32).bitwise_xor_(1 << 20)


def engine_of(shape: MeshShape, zero: int) -> Engine:
    cpu = torch.device("cpu")
    mesh, model = make_mesh(shape, cpu), build_model(MODEL)
    if shape.tp > 1:
        apply_tensor_parallel(model, mesh.device_mesh("tp"), tensor_plan(MODEL))
    return build_engine(
        [model],
        zero=zero,
        precision="fp32",
        mesh=mesh,
        device=cpu,
        optimizer=OPTIMIZER,
        accumulation=1,
        fill=fill_for(MODEL, 1),
    )


def check_everywhere() -> dict[str, str | None]:
    """Case -> what was said, after rank 2 flipped a bit of one parameter; None: nothing."""
    cases = {
        "stage 0": (MeshShape(dp_shard=4), 0, "layers.1.mlp.up_proj.weight"),
        "stage 2": (MeshShape(dp_shard=4), 2, "norm.weight"),
        "stage 3": (MeshShape(dp_shard=4), 3, "norm.weight"),
        "hybrid": (MeshShape(dp_replicate=2, dp_shard=2), 3, "embed_tokens.weight"),
        "tensor, whole": (MeshShape(dp_shard=1, tp=4), 1, "norm.weight"),
        "tensor, divided": (MeshShape(dp_shard=1, tp=4), 1, "layers.0.mlp.up_proj.weight"),
        "tensor and data": (MeshShape(dp_shard=2, tp=2), 1, "layers.0.mlp.up_proj.weight"),
    }
    found = {}
    for case, (shape, zero, name) in cases.items():
        engine = engine_of(shape, zero)
        replicas = Replicas(engine.parts)
        replicas.check(3)
        if dist.get_rank() == 2:
            flip_a_bit(dict(engine.parts[0].named_parameters())[name])
        found[case] = _said(replicas)
    found["tied"] = _tied()
    return found


def _said(replicas: Replicas) -> str | None:
    try:
        replicas.check(5)
    except DistperfError as error:
        return str(error)
    return None


def _tied() -> str | None:
    """Ranks 0 and 1 have another layer than 2 and 3; an embedding is on all of them, and flipped on rank 2."""
    part = nn.Module()
    part.embed = nn.Parameter(torch.ones(3))
    part.register_parameter(f"layer{dist.get_rank() // 2}", nn.Parameter(torch.ones(2)))
    if dist.get_rank() == 2:
        flip_a_bit(part.embed)
    return _said(Replicas([part], tied=("embed",)))


@pytest.mark.slow
def test_a_flipped_bit_is_named_on_every_rank():
    """The rank, the host, the parameter and the steps between; parts that only one rank has concern nobody."""
    four = run_ranks(check_everywhere, 4)
    assert all(found == four[0] for found in four)
    said = four[0]
    assert said["stage 3"] is None
    assert said["tensor, divided"] is None
    for case, name in (
        ("stage 0", "layers.1.mlp.up_proj.weight"),
        ("stage 2", "norm.weight"),
        ("tensor, whole", "norm.weight"),
        ("tied", "embed"),
    ):
        assert "step 5: ranks that must hold equal weights do not, since some step after" in said[case], case
        assert f" differs from rank 0, 1, 3 in {name}. Suspect" in said[case], case
        assert "rank 2 (" in said[case], case
    for case, name in (
        ("hybrid", "embed_tokens.weight dp_shard 0"),
        ("tensor and data", "layers.0.mlp.up_proj.weight tp 0"),
    ):
        assert f"rank 0 ({_host(said[case])}), 2 (" in said[case], case
        assert f"hold different {name}, and no majority says which is right" in said[case], case


def _host(text: str) -> str:
    return text.partition("rank 0 (")[2].partition(")")[0]
