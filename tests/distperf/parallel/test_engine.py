"""ZeRO stages 0 to 3 on real ranks, against the plain loop in one process."""

from __future__ import annotations

import math

import pytest
import torch
import torch.distributed as dist
import torch.utils.checkpoint
from ranks import run_ranks
from torch import Tensor, nn

from distperf.errors import DistperfError
from distperf.optim.clip import clip_factor, global_norm_sq
from distperf.parallel.engine import Engine, build_engine
from distperf.parallel.mesh import make_mesh
from distperf.recipe.mesh import MeshShape
from distperf.recipe.runspec import OptimizerSpec, ScheduleSpec

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

VOCAB, WIDTH, LENGTH, BATCH = 37, 12, 6, 8
LR, MAX_NORM = 1e-2, 0.5
SPEC = OptimizerSpec(
    name="adamw",
    lr=LR,
    betas=(0.9, 0.95),
    eps=1e-8,
    weight_decay=0.1,
    schedule=ScheduleSpec(name="constant", warmup_steps=0, decay_steps=0, min_lr=0.0),
    groups=(),
)


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 3 * WIDTH + 1)
        self.down = nn.Linear(3 * WIDTH + 1, WIDTH)
        self.turned = nn.Parameter(torch.empty(WIDTH, 3).t())
        self.bias = nn.Parameter(torch.empty(3))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.down(torch.tanh(self.up(self.norm(x))))
        return x + (x @ self.turned.t() + self.bias) @ self.turned


class Net(nn.Module):
    """Tied head, a transposed parameter, biases of 3 elements, a frozen parameter, a passing buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCAB, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(2))
        self.frozen = nn.Parameter(torch.empty(WIDTH), requires_grad=False)
        self.head = nn.Linear(WIDTH, VOCAB, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("phase", torch.empty(LENGTH, 1), persistent=False)

    def init_buffers(self, device: torch.device) -> None:
        self.phase = torch.linspace(0.1, 1.0, LENGTH, device=device).unsqueeze(1)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        x = x + (self.phase * 0.1).to(x.dtype) + self.frozen
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def make_net() -> Net:
    with torch.device("meta"):
        return Net()


def fill(fqn: str, shape, start: int, stop: int) -> Tensor:
    generator = torch.Generator().manual_seed(sum(map(ord, fqn)))
    return (torch.randn(math.prod(shape), generator=generator) * 0.2)[start:stop]


def batch(step: int) -> tuple[Tensor, Tensor]:
    tokens = torch.randint(VOCAB, (BATCH, LENGTH + 1), generator=torch.Generator().manual_seed(step))
    return tokens[:, :-1], tokens[:, 1:]


def loss_of(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    logits = model(inputs).float()
    total = nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")
    return total / (BATCH * LENGTH)


def plain_run(steps: int) -> tuple[list[float], list[float]]:
    """The same training without distperf's runtime."""
    model = make_net().to_empty(device="cpu")
    model.head.weight = model.embed.weight
    model.init_buffers(torch.device("cpu"))
    with torch.no_grad():
        for fqn, p in model.named_parameters():
            p.copy_(fill(fqn, p.shape, 0, p.numel()).view(p.shape))
    trained = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in trained if p.dim() >= 2], "weight_decay": SPEC.weight_decay},
        {"params": [p for p in trained if p.dim() < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=LR, betas=SPEC.betas, eps=SPEC.eps)
    losses, norms = [], []
    for step in range(steps):
        loss = loss_of(model, *batch(step))
        loss.backward()
        norms.append(float(nn.utils.clip_grad_norm_(trained, MAX_NORM)))
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, norms


def engine_for(
    zero: int,
    precision: str = "fp32",
    accumulation: int = 1,
    model: nn.Module | None = None,
    replicate: int = 1,
) -> Engine:
    world = dist.get_world_size() if dist.is_initialized() else 1
    cpu = torch.device("cpu")
    return build_engine(
        [model or make_net()],
        zero=zero,
        precision=precision,
        mesh=make_mesh(MeshShape(dp_replicate=replicate, dp_shard=world // replicate), cpu),
        device=cpu,
        optimizer=SPEC,
        accumulation=accumulation,
        fill=fill,
    )


def train(engine: Engine, first: int, stop: int, accumulation: int) -> tuple[list[float], list[float]]:
    group = dist.group.WORLD if dist.is_initialized() else None
    rank, size = (dist.get_rank(), dist.get_world_size()) if group else (0, 1)
    losses, norms = [], []
    for step in range(first, stop):
        parts = [part.chunk(size)[rank].chunk(accumulation) for part in batch(step)]
        total = torch.zeros(())
        for index, (inputs, targets) in enumerate(zip(*parts, strict=True)):
            loss = loss_of(engine.parts[0], inputs, targets)
            total += loss.detach()
            engine.backward(loss, last=index == accumulation - 1)
        engine.finish()
        norm_sq = global_norm_sq(engine.grad_norm_sq(), group)
        engine.step(LR, clip_factor(norm_sq, MAX_NORM))
        if group:
            dist.all_reduce(total)
        losses.append(float(total))
        norms.append(float(norm_sq.sqrt()))
    return losses, norms


def all_on_four_ranks():
    return {
        **train_all_stages("fp32", 20),
        **{
            ("hybrid", zero, accumulation): train(
                engine_for(zero, "fp32", accumulation, replicate=2), 0, 20, accumulation
            )
            for zero, accumulation in ((0, 1), (1, 2), (2, 2), (3, 1), (3, 2))
        },
    }


def train_all_stages(precision: str, steps: int):
    """(zero, accumulation) -> losses, norms."""
    return {
        (zero, accumulation): train(engine_for(zero, precision, accumulation), 0, steps, accumulation)
        for zero in range(4)
        for accumulation in (1, 2)
    }


def all_on_two_ranks():
    return {
        "fp32": train_all_stages("fp32", 20),
        "bf16": train_all_stages("bf16", 8),
        "memory": memory_of_stages(),
        "heads": train_heads_everywhere(),
    }


@pytest.fixture(scope="module")
def two_ranks():
    """What two ranks found; one start of processes for many tests."""
    return run_ranks(all_on_two_ranks, 2, timeout_s=250)


@pytest.fixture(scope="module")
def four_ranks():
    return [{"fp32": found} for found in run_ranks(all_on_four_ranks, 4, timeout_s=250)]


@pytest.mark.parametrize("ranks", ["two_ranks", "four_ranks"])
def test_every_stage_trains_as_one_process_does(ranks, request):
    """Losses and norms of 20 fp32 steps equal the plain loop's within 1e-5: any stage, rank, accumulation."""
    losses, norms = plain_run(20)
    for result in request.getfixturevalue(ranks):
        for case, (found_losses, found_norms) in result["fp32"].items():
            assert found_losses == pytest.approx(losses, rel=1e-5), case
            assert found_norms == pytest.approx(norms, rel=1e-5), case


def test_bf16_stages_agree(two_ranks):
    """Stages 0 to 2 are equal to the last bit; all are near the one-process run, and that is near fp32."""
    single = train(engine_for(0, "bf16"), 0, 8, 1)[0]
    assert single == pytest.approx(plain_run(8)[0], rel=2e-2)
    for result in (found["bf16"] for found in two_ranks):
        assert result[0, 1] == result[1, 1] == result[2, 1]
        for case, (losses, _) in result.items():
            assert losses == pytest.approx(single, rel=5e-3), case


def check_state() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    for zero in range(4):
        for precision in ("fp32", "bf16"):
            engine = engine_for(zero, precision)
            check_initial_weights(engine, precision)
            train(engine, 0, 2, 1)
            check_resume(engine, engine_for(zero, precision))
    for zero in range(4):
        engine = engine_for(zero)
        keys: list[list[str] | None] = [None] * size
        dist.all_gather_object(keys, list(engine.state()))
        assert keys[rank] == keys[0], "all ranks list the same tensors in the same order"


def check_initial_weights(engine: Engine, precision: str) -> None:
    """The pieces of all ranks are the one-process weights to the bit, each element exactly once."""
    state = engine.state()
    for fqn, parameter in make_net().named_parameters():
        owned = state[f"model.{fqn}"]
        assert owned.shape == tuple(parameter.shape)
        whole, times = torch.zeros(owned.shape), torch.zeros(owned.shape)
        for piece in owned.pieces:
            region = tuple(slice(o, o + n) for o, n in zip(piece.offsets, piece.tensor.shape, strict=True))
            whole[region] += piece.tensor
            times[region] += 1
        for tensor in (whole, times):
            dist.all_reduce(tensor)
        expected = fill(fqn, parameter.shape, 0, parameter.numel()).view(parameter.shape)
        if owned.dtype == torch.bfloat16:
            assert not parameter.requires_grad, "what is trained has an fp32 master"
            expected = expected.bfloat16().float()
        assert torch.equal(whole, expected), fqn
        assert torch.equal(times, torch.ones_like(times)), fqn


def check_resume(trained: Engine, fresh: Engine) -> None:
    """State written into a fresh engine makes it continue as the old one does, to the bit."""
    saved, target = trained.state(), fresh.state()
    assert saved.keys() == target.keys()
    for key, owned in saved.items():
        for source, place in zip(owned.pieces, target[key].pieces, strict=True):
            assert source.offsets == place.offsets
            place.tensor.copy_(source.tensor)
    fresh.optimizer_step = trained.optimizer_step
    fresh.loaded()
    assert train(fresh, 2, 4, 1) == train(trained, 2, 4, 1)


def test_state_on_three_ranks():
    """Initial weights, listing and resuming, on a world size that divides nothing."""
    run_ranks(check_state, 3, timeout_s=250)


def memory_of_stages():
    found = {}
    for zero in range(4):
        for precision, accumulation in (("fp32", 1), ("bf16", 1), ("bf16", 2)):
            engine = engine_for(zero, precision, accumulation)
            train(engine, 0, 1, accumulation)
            found[zero, precision, accumulation] = engine.memory()
    return found


def test_memory_is_what_the_design_says(two_ranks):
    """Parameters, gradients and optimizer state are as in the table of stages, but for padding of shards."""
    parameters = list(make_net().parameters())
    n, size = sum(p.numel() for p in parameters), 2
    trained = n - WIDTH
    rows = sum(p[0].numel() for p in parameters)  # stage 3 divides rows, the others elements
    for result in two_ranks:
        for (zero, precision, accumulation), memory in result["memory"].items():
            w, g = (4, 4) if precision == "fp32" else (2, 4 if accumulation > 1 else 2)
            o = 8 if precision == "fp32" else 12
            if zero == 3:
                w, g, o = 4, 4, 8  # fully_shard's shards are the fp32 masters
            expected = {
                "parameters_bytes": w * n / (size if zero == 3 else 1),
                "gradients_bytes": g * trained / (size if zero >= 2 else 1),
                "optimizer_bytes": o * trained / (size if zero >= 1 else 1),
            }
            for key, value in expected.items():
                tolerance = 12 * (rows if zero == 3 else 2 * len(parameters))
                assert memory[key] == pytest.approx(value, abs=tolerance), (
                    zero,
                    precision,
                    accumulation,
                    key,
                )


class Heads(nn.Module):
    """A trunk and two heads of which a forward pass uses one."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Linear(4, 3)
        self.heads = nn.ModuleList(nn.Linear(3, 1) for _ in range(2))

    def forward(self, x: Tensor, head: int) -> Tensor:
        return self.heads[head](torch.tanh(self.trunk(x)))


def train_heads(zero: int, by_rank: bool) -> list[float]:
    with torch.device("meta"):
        model = Heads()
    engine = engine_for(zero, model=model)
    rank, norms = dist.get_rank(), []
    for step in range(4):
        x = torch.randn(2, 4, generator=torch.Generator().manual_seed(2 * step + rank))
        engine.backward(engine.parts[0](x, rank if by_rank else step % 2).square().sum(), last=True)
        engine.finish()
        norm_sq = global_norm_sq(engine.grad_norm_sq(), dist.group.WORLD)
        engine.step(LR, 1.0)
        norms.append(float(norm_sq))
    return norms


def train_heads_everywhere() -> dict[tuple[int, bool], list[float]]:
    return {(zero, by_rank): train_heads(zero, by_rank) for zero in range(4) for by_rank in (False, True)}


def test_parameters_that_are_not_used_count_as_zero(two_ranks):
    """Heads that alternate by step, or differ by rank, neither hang nor differ between stages."""
    first, second = (found["heads"] for found in two_ranks)
    assert first == second
    for by_rank in (False, True):
        assert min(first[0, by_rank]) > 0
        for zero in (1, 2, 3):
            assert first[zero, by_rank] == pytest.approx(first[0, by_rank], rel=1e-6), (zero, by_rank)


class OneWeight(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(1))


def test_small_steps_are_not_rounded_away_in_bf16():
    """A hundred steps of 6e-4 move a weight of 1.0 to 0.94: bf16 alone would leave it where it is."""
    with torch.device("meta"):
        model = OneWeight()
    engine = build_engine(
        [model],
        zero=2,
        precision="bf16",
        mesh=make_mesh(MeshShape(), torch.device("cpu")),
        device=torch.device("cpu"),
        optimizer=SPEC,
        accumulation=1,
        fill=lambda fqn, shape, start, stop: torch.ones(stop - start),
    )
    for _ in range(100):
        engine.backward(engine.parts[0].weight.sum(), last=True)
        engine.finish()
        engine.step(6e-4, 1.0)
    assert engine.state()["model.weight"].pieces[0].tensor.item() == pytest.approx(0.94, abs=1e-3)
    assert engine.parts[0].weight.item() == pytest.approx(0.94, abs=4e-3)


def test_an_expanded_parameter_is_refused_by_name():
    """A parameter whose elements share memory cannot be divided; the message names it and the way out."""
    model = nn.Module()
    model.scale = nn.Parameter(torch.empty(1, 4, device="meta").expand(3, 4))
    with pytest.raises(
        DistperfError, match=r"parameter scale: it is an expanded view .*expand it in forward"
    ):
        engine_for(1, model=model)


def test_a_buffer_without_values_is_refused_by_name():
    """A buffer made on the meta device would hold whatever memory holds."""
    with torch.device("meta"):
        model = nn.BatchNorm1d(3)
    with pytest.raises(DistperfError, match=r"buffer running_mean has no values.*init_buffers"):
        engine_for(0, model=model)


def test_a_second_gradient_in_one_pass_is_refused_by_name():
    """A parameter whose gradient comes in two parts would be reduced without the second one."""
    engine = engine_for(1)
    inputs, _ = batch(0)
    checkpointed = torch.utils.checkpoint.checkpoint
    layer = engine.parts[0].layers[0]
    x = engine.parts[0].embed(inputs).detach().requires_grad_()
    twice = checkpointed(layer, x, use_reentrant=True) + checkpointed(layer, x, use_reentrant=True)
    with pytest.raises(DistperfError, match=r"parameter layers\.0\..* two gradients in one backward"):
        engine.backward(twice.sum(), last=True)
