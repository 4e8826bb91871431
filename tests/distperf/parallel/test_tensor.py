"""Tensor and sequence parallelism on real ranks, against the same model in one process."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace
from functools import partial

import pytest
import torch
import torch.distributed as dist
from ranks import run_ranks
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.utils._python_dispatch import TorchDispatchMode

from distperf.errors import DistperfError, MeshError
from distperf.model.dropout import Draws, attach_draws
from distperf.model.init import fill_for
from distperf.model.llama import build_model, tensor_plan
from distperf.model.loss import IGNORE, ROWS, loss_sum
from distperf.model.tensor_plan import TensorPlan
from distperf.parallel.engine import build_engine
from distperf.parallel.materialize import install
from distperf.parallel.mesh import make_mesh
from distperf.parallel.tensor import apply_tensor_parallel
from distperf.recipe.mesh import MeshShape
from distperf.recipe.runspec import ModelSpec, OptimizerSpec, ScheduleSpec
from distperf.recipe.stages import Stage

pytestmark = [pytest.mark.slow, pytest.mark.timeout(200)]

LENGTH, BATCH = 16, 2
LLAMA = ModelSpec("llama", 2, 32, 8, 4, 64, 96, False, 10000.0, 1e-5, 0.0)
SPECS = [
    replace(LLAMA, tied_embedding=tied, vocab=vocab, kv_heads=kv_heads, dropout=0.3 * tied)
    for tied, vocab, kv_heads in itertools.product((False, True), (96, 97), (8, 4))
]


class Mixer(nn.Module):
    """A block as a user might write it: biases, LayerNorm, a norm of each head."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.head_size = width // heads
        self.before = nn.LayerNorm(width)
        self.key, self.value = nn.Linear(width, width), nn.Linear(width, width)
        self.key_norm = nn.LayerNorm(self.head_size)
        self.out = nn.Linear(width, width)
        self.after = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 3 * width), nn.Linear(3 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        h = self.before(x)
        key, value = (p(h).unflatten(-1, (-1, self.head_size)) for p in (self.key, self.value))
        weights = self.key_norm(key).square().mul(0.1).sin().mean(-1, keepdim=True).cumsum(1).sigmoid()
        x = x + self.out((weights * value.cumsum(1)).flatten(2))
        return x + self.down(torch.relu(self.up(self.after(x))))


class Own(nn.Module):
    """A small model of a user's own; head and embedding are two modules that share a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(45, 24, padding_idx=3)
        self.blocks = nn.ModuleList(Mixer(24, 4) for _ in range(2))
        self.last = nn.LayerNorm(24)
        self.head = nn.Linear(24, 45, bias=False)
        self.head.weight = self.embed.weight
        self.last.bias.requires_grad_(False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.last(x))


OWN_PLAN = TensorPlan(
    {
        "embed": "embedding",
        "blocks.*.before": "norm",
        "blocks.*.after": "norm",
        "blocks.*.key_norm": "head_norm",
        "blocks.*.out": "rowwise",
        "blocks.*.down": "rowwise",
        "blocks.*.*": "colwise",
        "last": "norm",
        "head": "head",
    },
    units={"heads": 4},
)


def make_own() -> Own:
    with torch.device("meta"):
        return Own()


def values(model: nn.Module, dtype: torch.dtype) -> dict[str, Tensor]:
    """The same values of whole parameters on every rank."""
    generator = torch.Generator().manual_seed(3)
    return {
        fqn: torch.randn(p.shape, generator=generator).mul(0.2).add(p.dim() == 1).to(dtype)
        for fqn, p in model.named_parameters()
    }


def batch(vocab: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    tokens = torch.randint(vocab, (BATCH, LENGTH + 1), generator=torch.Generator().manual_seed(seed))
    targets = tokens[:, 1:].clone()
    targets[0, 3:6] = IGNORE
    return tokens[:, :-1], targets


def divide(model: nn.Module, plan: TensorPlan, mesh: DeviceMesh, whole: dict[str, Tensor]) -> None:
    """Divide a model that is on the meta device over `mesh`, and fill it."""
    apply_tensor_parallel(model, mesh, plan)
    blocks = {
        fqn: distribute_tensor(whole[fqn], mesh, p.placements, src_data_rank=None).to_local()
        for fqn, p in model.named_parameters()
    }
    install([model], blocks)


def gradients(model: nn.Module) -> dict[str, Tensor]:
    """Whole gradients, and a check that those of replicated parameters are equal to the bit on all ranks."""
    found = {}
    for fqn, p in model.named_parameters():
        if isinstance(p, DTensor) and p.grad is not None:
            grad = p.grad.redistribute(placements=p.placements)
            if p.placements == (Replicate(),):
                assert_equal_everywhere(grad.to_local(), fqn)
            found[fqn] = grad.full_tensor()
        elif p.grad is not None:
            found[fqn] = p.grad
    return found


def assert_equal_everywhere(tensor: Tensor, name: str) -> None:
    everywhere = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(everywhere, tensor)
    assert all(torch.equal(one, tensor) for one in everywhere), name


def compare(make, plan: TensorPlan, vocab: int, mesh: DeviceMesh, dtype: torch.dtype, rtol: float) -> None:
    """Loss and every gradient equal those of one process."""
    one, many = make(), make()
    whole = values(one, dtype)
    install([one], whole)
    divide(many, plan, mesh, whole)
    for model in (one, many):
        attach_draws(model, Draws(7, torch.device("cpu")))
    inputs, targets = batch(vocab)
    losses = [loss_sum(model(inputs), targets) for model in (one, many)]
    for loss in losses:
        loss.backward()
    assert_equal_everywhere(losses[1].detach(), "loss")
    torch.testing.assert_close(losses[1], losses[0], rtol=rtol, atol=0)
    expected, found = gradients(one), gradients(many)
    assert expected.keys() == found.keys()
    for fqn, grad in expected.items():
        difference = (found[fqn] - grad).abs().max() / grad.abs().max()
        assert difference < rtol, (fqn, difference, plan)


def on_two_ranks() -> None:
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
    for spec in SPECS:
        plan, make = tensor_plan(spec), partial(build_model, spec)
        compare(make, plan, spec.vocab, mesh, torch.float32, 1e-5)
        compare(make, plan, spec.vocab, mesh, torch.bfloat16, 4e-2)
        compare(make, replace(plan, sequence=False), spec.vocab, mesh, torch.float32, 1e-5)
    for plan in (OWN_PLAN, replace(OWN_PLAN, sequence=False)):
        compare(make_own, plan, 45, mesh, torch.float32, 1e-5)
    check_shared_and_frozen(mesh)
    check_no_drift()
    check_stages(mesh)
    check_bytes(mesh)
    check_loss(mesh)
    check_refusals(mesh)


def check_shared_and_frozen(mesh: DeviceMesh) -> None:
    """A tie survives, and so does being frozen; every parameter is divided as its style says."""
    model = make_own()
    apply_tensor_parallel(model, mesh, OWN_PLAN)
    assert model.head.weight is model.embed.weight
    assert not model.last.bias.requires_grad
    assert model.last.weight.requires_grad
    assert model.embed.weight.placements == (Shard(0),)
    assert model.embed.weight.to_local().shape == ((23, 22)[mesh.get_local_rank()], 24)
    assert model.blocks[0].out.bias.placements == (Replicate(),)


def check_no_drift() -> None:
    """After five updates, what both ranks have whole is equal to the bit; what they divide is not."""
    spec, device = replace(LLAMA, tied_embedding=True), torch.device("cpu")
    mesh, model = make_mesh(MeshShape(tp=2), device), build_model(spec)
    apply_tensor_parallel(model, mesh.device_mesh("tp"), tensor_plan(spec))
    optimizer = OptimizerSpec("adamw", 1e-2, (0.9, 0.95), 1e-8, 0.1, ScheduleSpec("constant", 0, 0, 0.0), ())
    engine = build_engine(
        [model],
        zero=1,
        precision="bf16",
        mesh=mesh,
        device=device,
        optimizer=optimizer,
        accumulation=1,
        fill=fill_for(spec, 1),
    )
    attach_draws(model, Draws(7, device))
    for step in range(5):
        inputs, targets = batch(spec.vocab, step)
        engine.backward(loss_sum(model(inputs), targets), last=True)
        engine.finish()
        engine.step(1e-2, 1e-2)
    norms = [p.to_local() for p in model.parameters() if p.placements == (Replicate(),)]
    assert len(norms) == 2 * spec.layers + 1
    assert not torch.equal(norms[0], torch.ones_like(norms[0]))
    for norm in norms:
        assert_equal_everywhere(norm, "norm")
    owned = engine.state()
    assert [owned[f"model.{fqn}"].saves for fqn in ("norm.weight", "embed_tokens.weight")] == [
        mesh.coordinates["tp"] == 0,
        True,
    ]


def check_stages(mesh: DeviceMesh) -> None:
    """Parts of a model, divided each, take and give plain tensors of this rank's positions."""
    first, last = (build_model(LLAMA, Stage(index, 2, index, index + 1)) for index in (0, 1))
    whole = values(build_model(LLAMA), torch.float32)
    for stage in (first, last):
        divide(stage, tensor_plan(LLAMA), mesh, whole)
    inputs, _ = batch(LLAMA.vocab)
    stream = first(inputs)
    assert type(stream) is Tensor
    assert stream.shape == (BATCH, LENGTH // 2, LLAMA.hidden)
    logits = last(stream)
    assert logits.to_local().shape == (BATCH, LENGTH, LLAMA.vocab // 2)
    one = build_model(LLAMA)
    install([one], whole)
    torch.testing.assert_close(logits.full_tensor(), one(inputs), rtol=1e-5, atol=1e-5)


class Sent(TorchDispatchMode):
    """Bytes that this rank sends in collectives of N ranks, as rings do it."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size, self.counts, self.bytes = size, Counter(), 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if DTensor in types:
            return NotImplemented
        name = func.name().partition("::")[2].partition(".")[0].rstrip("_").replace("_", "")
        times = {"allgatherintotensor": 1, "reducescattertensor": 1 / self.size, "allreduce": 2 / self.size}
        if func.namespace in ("_c10d_functional", "c10d") and name in times:
            first = args[0] if isinstance(args[0], Tensor) else args[0][0]
            self.counts[name] += 1
            self.bytes += int(first.nbytes * times[name] * (self.size - 1))
        return func(*args, **(kwargs or {}))


def check_bytes(mesh: DeviceMesh) -> None:
    """What a block, and embedding and head, send is what apply_tensor_parallel states, and nothing else."""
    size, sent = mesh.size(), {}
    for layers in (1, 2):
        spec = replace(LLAMA, layers=layers)
        model = build_model(spec)
        divide(model, tensor_plan(spec), mesh, values(model, torch.float32))
        inputs, _ = batch(spec.vocab)
        with Sent(size) as forward:
            logits = model(inputs)
        with Sent(size) as backward:
            logits.to_local().sum().backward()
        assert forward.bytes == backward.bytes
        assert set(forward.counts) == {"allgatherintotensor", "reducescattertensor"}
        sent[layers] = forward.bytes + backward.bytes
    stream = BATCH * LENGTH * LLAMA.hidden * 4 * (size - 1) // size
    assert sent[2] - sent[1] == 8 * stream
    assert sent[1] == (8 + 2 + 2) * stream


def check_loss(mesh: DeviceMesh) -> None:
    """Of logits divided unequally, in more than one chunk of rows: the sum and gradient of one process."""
    generator = torch.Generator().manual_seed(5)
    for vocab, dtype in ((31, torch.float32), (32, torch.float32), (31, torch.bfloat16)):
        logits = torch.randn(2, ROWS - 3, vocab, generator=generator).mul(8).to(dtype)
        targets = torch.randint(vocab, logits.shape[:2], generator=generator)
        targets[1, 5:9] = IGNORE
        one = logits.clone().requires_grad_()
        many = distribute_tensor(logits, mesh, [Shard(-1)], src_data_rank=None).requires_grad_()
        with Sent(mesh.size()) as forward:
            found = loss_sum(many, targets)
        expected = loss_sum(one, targets)
        assert forward.counts == {"allreduce": 2}
        assert forward.bytes == 24 * targets.numel() * (mesh.size() - 1) // mesh.size()
        assert_equal_everywhere(found.detach(), "loss")
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=0)
        with Sent(mesh.size()) as backward:
            (found * 0.5).backward()
        (expected * 0.5).backward()
        assert not backward.counts
        torch.testing.assert_close(many.grad.full_tensor(), one.grad)


def check_refusals(mesh: DeviceMesh) -> None:
    """What cannot be divided is named."""
    plan, without = tensor_plan(LLAMA), partial(TensorPlan, units={})
    one_head = tensor_plan(replace(LLAMA, kv_heads=1))
    cases = [
        (LLAMA, one_head, MeshError, "2 ranks cannot divide model.kv_heads (1) equally; it takes only 1"),
        (
            replace(LLAMA, ffn=63),
            without(plan.styles),
            MeshError,
            "dim 0 of layers.0.mlp.gate_proj",
        ),
        (replace(LLAMA, vocab=1), plan, MeshError, "leave one of 2 ranks without"),
        (
            LLAMA,
            without({"layers.*norm": "norm"}),
            DistperfError,
            "no style for the module of embed_tokens.weight",
        ),
        (LLAMA, without({"norm": "colwise"}), DistperfError, "norm as colwise: it is a RMSNorm"),
    ]
    for spec, given, error, text in cases:
        with pytest.raises(error) as caught:
            apply_tensor_parallel(build_model(spec), mesh, given)
        assert text in str(caught.value)
    odd = build_model(LLAMA)
    divide(odd, plan, mesh, values(odd, torch.float32))
    with pytest.raises(MeshError, match=r"positions \(15\) equally"):
        odd(batch(LLAMA.vocab)[0][:, 1:])
    dropping = make_own()
    dropping.blocks[1].add_module("dropout", nn.Dropout(0.1))
    with pytest.raises(DistperfError, match=r"blocks.1.dropout draws from a generator"):
        apply_tensor_parallel(dropping, mesh, OWN_PLAN)
    untied = replace(OWN_PLAN, styles={**OWN_PLAN.styles, "head": "rowwise"})
    with pytest.raises(DistperfError, match="another module shares it"):
        apply_tensor_parallel(make_own(), mesh, untied)


def test_two_ranks_train_as_one_process_does_f13():
    """Loss and gradients, any Llama and a user's own model; ties, stages, drift, bytes sent, loss, refusals.

    F13: the tied Llamas drop the elements that one process drops, where ranks hold the same positions or others.
    """
    run_ranks(on_two_ranks, 2, timeout_s=150)


def on_four_ranks() -> None:
    mesh = init_device_mesh("cpu", (4,), mesh_dim_names=("tp",))
    spec = SPECS[-1]
    compare(partial(build_model, spec), tensor_plan(spec), spec.vocab, mesh, torch.float32, 1e-5)


def test_four_ranks_train_as_one_process_does():
    """The same on four, of a tied Llama: 97 rows of vocabulary are 25, 25, 25 and 22."""
    run_ranks(on_four_ranks, 4, timeout_s=150)
