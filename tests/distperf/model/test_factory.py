"""Models that a function of the user's makes, as they are trained and as they are refused."""

from __future__ import annotations

import importlib
import os
import random
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from ranks import run_ranks
from torch import nn

from distperf.errors import DistperfError
from distperf.failure import innermost_frame
from distperf.model.blueprint import blueprint_of
from distperf.model.loss import loss_sum
from distperf.optim.clip import global_norm_sq
from distperf.parallel.engine import build_engine
from distperf.parallel.mesh import make_mesh
from distperf.recipe.mesh import MeshShape
from distperf.recipe.runspec import FactorySpec, GroupSpec, OptimizerSpec, ScheduleSpec

VOCAB, LENGTH, BATCH, STEPS, SEED, LR = 37, 6, 8, 6, 5, 1e-2
GROUPS = (GroupSpec(("embed.*",), 0.5, None), GroupSpec(("*.bias",), 2.0, 0.3))
OPTIMIZER = OptimizerSpec(
    "adamw", LR, (0.9, 0.95), 1e-8, 0.1, ScheduleSpec("constant", 0, 0, 0.0), groups=GROUPS
)
OWN = f"""
import random, numpy, torch
from torch import nn

class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up = nn.Linear(width, 3)  # a bias of 3 elements, fewer than ranks
        self.turned = nn.Parameter(torch.randn(width, 3).t())  # not contiguous
        self.never = nn.Linear(width, width)  # gets no gradient

    def forward(self, x):
        return x + torch.tanh(self.up(x)) @ self.turned

class Net(nn.Module):
    def __init__(self, width, depth):
        super().__init__()
        self.embed = nn.Embedding({VOCAB}, width)
        self.blocks = nn.ModuleList(Layer(width) for _ in range(depth))
        self.scale = nn.Parameter(torch.tensor(random.random() + numpy.random.random()))  # no dims
        self.head = nn.Linear(width, {VOCAB}, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("phase", torch.linspace(0, 1, width, dtype=torch.float64), persistent=False)
        self.register_buffer("count", torch.arange(3))

    def forward(self, tokens):
        x = self.embed(tokens) + (self.phase.to(self.scale.dtype) * self.scale)
        for block in self.blocks:
            x = block(x)
        return self.head(x)

def build(width, depth=2):
    return Net(width, depth)

def fails():
    raise OSError("no such weights")

class Short(nn.Embedding):
    def forward(self, tokens):
        return super().forward(tokens)[:, 1:]

def short(): return Short({VOCAB}, {VOCAB})
def nothing(): return {{"a": 1}}
def lazy(): return nn.Sequential(nn.LazyLinear(3))
def batchnorm(): return nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
def empty(): return nn.Sequential(nn.ReLU())
def whole(): return nn.ParameterList([torch.ones(2), nn.Parameter(torch.ones(2, dtype=int), False)])
def expanded():
    net = Net(8, 1)
    net.scale = nn.Parameter(torch.zeros(1).expand(8))
    return net
number = 5
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A module of the user's in the folder where ranks run."""
    package = tmp_path / "own"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "nets.py").write_text(OWN)
    (package / "needs.py").write_text("import not_installed\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in [name for name in sys.modules if name.partition(".")[0] == "own"]:
        del sys.modules[name]


def spec(name: str = "own.nets:build", **args: object) -> FactorySpec:
    return FactorySpec("factory", name, args, VOCAB)


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    tokens = torch.randint(VOCAB, (BATCH, LENGTH + 1), generator=torch.Generator().manual_seed(step))
    return tokens[:, :-1], tokens[:, 1:]


def plain_run() -> tuple[list[float], list[float], dict[str, torch.Tensor]]:
    """The same training without distperf's runtime."""
    torch.manual_seed(SEED)
    random.seed(SEED)
    np.random.seed(SEED)
    model = importlib.import_module("own.nets").build(width=8)
    model.blocks[1].up.weight.requires_grad_(False)
    lr = {name: LR * (0.5 if "embed" in name else 2.0 if "bias" in name else 1.0)
          for name, _ in model.named_parameters()}  # fmt: skip
    decay = {n: 0.3 if "bias" in n else 0.1 if p.dim() > 1 else 0.0 for n, p in model.named_parameters()}
    groups = [
        {"params": [p], "lr": lr[n], "weight_decay": decay[n]} for n, p in model.named_parameters() if p.requires_grad
    ]  # fmt: skip
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer = torch.optim.AdamW(groups, betas=OPTIMIZER.betas, eps=OPTIMIZER.eps)
    losses, norms = [], []
    for step in range(STEPS):
        inputs, targets = batch(step)
        loss = loss_sum(model(inputs), targets)
        loss.backward()
        norms.append(float(nn.utils.get_total_norm([p.grad for p in model.parameters() if p.requires_grad])))
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        losses.append(loss.item())
    return losses, norms, {name: p.detach().clone() for name, p in model.named_parameters()}


def train_on_ranks(folder: str):
    """zero -> losses, norms, final weights of this rank's pieces, buffers."""
    os.chdir(folder)
    cpu, rank, size = torch.device("cpu"), dist.get_rank(), dist.get_world_size()
    found = {}
    for zero in range(4):
        blueprint = blueprint_of(spec(width=8), SEED, frozen=("blocks.1.up.weight",))
        engine = build_engine(
            [blueprint.build()],
            zero=zero,
            precision="fp32",
            mesh=make_mesh(MeshShape(dp_shard=size), cpu),
            device=cpu,
            optimizer=OPTIMIZER,
            accumulation=1,
            fill=blueprint.fill,
        )
        model, losses, norms = engine.parts[0], [], []
        for step in range(STEPS):
            inputs, targets = (part.chunk(size)[rank] for part in batch(step))
            loss = loss_sum(model(inputs), targets)
            engine.backward(loss, last=True)
            engine.finish()
            norms.append(float(global_norm_sq(engine.grad_norm_sq(), dist.group.WORLD).sqrt()))
            engine.step(LR, 1.0)
            total = loss.detach().clone()
            dist.all_reduce(total)
            losses.append(float(total))
        buffers = {name: (buffer.dtype, buffer.tolist()) for name, buffer in model.named_buffers()}
        tied = model.embed.weight is model.head.weight
        pieces = {
            key.removeprefix("model."): [(piece.offsets, piece.tensor.clone()) for piece in owned.pieces]
            for key, owned in engine.state().items()
            if key.startswith("model.")
        }
        found[zero] = losses, norms, pieces, buffers, tied
    return found


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_any_module_trains_as_in_one_process(own):
    """E01, E03, E15, E20, E21: ties, small, scalar, turned, unused and frozen parameters, buffers, groups; ZeRO 0-3."""
    losses, norms, weights = plain_run()
    four = run_ranks(train_on_ranks, 4, str(own), timeout_s=180)
    for zero in range(4):
        whole = {name: torch.full_like(weight, torch.nan) for name, weight in weights.items()}
        for found in four:
            assert found[zero][0] == pytest.approx(losses, rel=1e-5), zero
            assert found[zero][1] == pytest.approx(norms, rel=1e-5), zero
            assert found[zero][3]["phase"] == (
                torch.float64,
                torch.linspace(0, 1, 8, dtype=torch.float64).tolist(),
            )
            assert found[zero][3]["count"] == (torch.int64, [0, 1, 2])
            assert found[zero][4], "the head is still the embedding"
            for name, pieces in found[zero][2].items():
                for offsets, piece in pieces:
                    region = tuple(slice(o, o + n) for o, n in zip(offsets, piece.shape, strict=True))
                    whole[name][region] = piece
        assert whole.keys() == weights.keys(), zero
        for name, weight in weights.items():
            torch.testing.assert_close(whole[name], weight, rtol=1e-4, atol=1e-5, msg=f"{zero} {name}")


@pytest.mark.parametrize(
    ("name", "args", "words"),
    [
        ("mine.nets:build", {}, r"mine.nets:build: no module mine in .* Put it into launch.workdir"),
        ("own.net:build", {}, r"no module own.net in"),
        ("own.nets:biuld", {}, r"biuld has no such name in .*nets.py"),
        ("own.nets:number", {}, r"number is an int, no function"),
        ("own.nets:build", {}, r"missing a required argument: 'width'; model.args .* \(width, depth=2\)"),
        ("own.nets:build", {"width": 8, "deep": 1}, r"unexpected keyword argument 'deep'"),
        ("own.nets:nothing", {}, r"returned a dict; it must return a torch.nn.Module"),
        ("own.nets:lazy", {}, r"parameter 0.weight of a lazy module"),
        ("own.nets:batchnorm", {}, r"1 \(BatchNorm1d\) keeps running statistics"),
        ("own.nets:empty", {}, r"no trainable parameter"),
        ("own.nets:whole", {}, r"parameter 1 is torch.int64"),
    ],
)
def test_what_cannot_be_trained_is_refused_in_plain_words(own, name, args, words):
    """Each message says what was asked for, what was found, and where."""
    with pytest.raises(DistperfError, match=words):
        blueprint_of(spec(name, **args), SEED)


def test_logits_of_another_shape_are_refused_at_the_first_batch(own):
    """Without the check a shifted loss would be trained on, or an index error raised far from its cause."""
    model = blueprint_of(spec("own.nets:short"), SEED).build()
    with pytest.raises(
        DistperfError, match=r"for tokens \(2, 6\) .* returned \(2, 5, 37\) torch.float32; .* \(2, 6, 37\)"
    ):
        model(torch.zeros(2, 6, dtype=torch.int64, device="meta"))


def test_what_the_function_raises_is_its_own(own):
    """An error inside the user's code keeps its type, its traceback, and its innermost line of theirs."""
    with pytest.raises(OSError, match="no such weights") as caught:
        blueprint_of(spec("own.nets:fails"), SEED)
    assert innermost_frame(caught.value).endswith("in fails")
    with pytest.raises(ModuleNotFoundError, match="not_installed") as missing:
        blueprint_of(spec("own.needs:build"), SEED)
    assert "needs.py" in innermost_frame(missing.value)


def test_the_same_weights_everywhere_and_no_trace_in_the_generators(own):
    """A seed decides the weights whatever was drawn before; afterwards draws go on as if nothing had been."""
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    first, second, other = (blueprint_of(spec(width=8), seed) for seed in (SEED, SEED, SEED + 1))
    assert torch.equal(torch.rand(3), expected)
    values = [b.fill("scale", (), 0, 1).item() for b in (first, second, other)]
    assert values[0] == values[1] != values[2]
    whole = first.fill("blocks.0.turned", (3, 8), 0, 24)
    assert torch.equal(
        torch.cat([first.fill("blocks.0.turned", (3, 8), a, a + 8) for a in (0, 8, 16)]), whole
    )
    assert all(parameter.is_meta for parameter in first.build().parameters())
