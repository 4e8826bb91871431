"""Models of transformers: trained as in one plain process, read by slices, refused in plain words."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from ranks import run_ranks
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from distperf.errors import DistperfError
from distperf.model.blueprint import blueprint_of
from distperf.model.loss import loss_sum
from distperf.model.stored import sources
from distperf.optim.clip import global_norm_sq
from distperf.parallel.engine import build_engine
from distperf.parallel.mesh import make_mesh
from distperf.parallel.tensor import apply_tensor_parallel
from distperf.recipe.mesh import MeshShape
from distperf.recipe.runspec import HfSpec, OptimizerSpec, ScheduleSpec

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # of transformers' own imports
]

VOCAB, LENGTH, BATCH, STEPS, SEED, LR = 97, 8, 8, 5, 5, 3e-3
OPTIMIZER = OptimizerSpec("adamw", LR, (0.9, 0.95), 1e-8, 0.1, ScheduleSpec("constant", 0, 0, 0.0), ())
SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
NO_DROPOUT = {
    "embd_pdrop": 0.0,
    "attn_pdrop": 0.0,
    "resid_pdrop": 0.0,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
}
DIVISIBLE = ("llama", "qwen2", "qwen3")
CONFIGS = {
    "llama": {"model_type": "llama", **SIZES},
    "qwen2": {"model_type": "qwen2", **SIZES, "tie_word_embeddings": True},
    "qwen3": {"model_type": "qwen3", **SIZES, "head_dim": 8},
    "gpt2": {"model_type": "gpt2", "vocab_size": VOCAB, "n_positions": 64, **NO_DROPOUT},
    # 64 experts for the 32 tokens of a rank, each of which chooses two: many are unused by one rank, or by all
    "mixtral": {
        "model_type": "mixtral",
        **SIZES,
        "intermediate_size": 8,
        "num_local_experts": 64,
        "num_experts_per_tok": 2,
    },
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for each architecture; all but Qwen3's have weights, as transformers saves them."""
    import transformers

    root = tmp_path_factory.mktemp("hf")
    for name, config in CONFIGS.items():
        write_config(root / name, config)
        if name != "qwen3":
            torch.manual_seed(len(name))
            config = transformers.AutoConfig.from_pretrained(root / name)
            transformers.AutoModelForCausalLM.from_config(config).save_pretrained(
                root / name, max_shard_size="60KB"
            )
    return root


def write_config(folder: Path, config: dict[str, object]) -> str:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


def spec(folder: Path | str) -> HfSpec:
    return HfSpec("hf", str(folder))


def batch(step: int) -> tuple[Tensor, Tensor]:
    tokens = torch.randint(VOCAB, (BATCH, LENGTH + 1), generator=torch.Generator().manual_seed(step))
    return tokens[:, :-1], tokens[:, 1:]


def plain_run(folder: Path) -> tuple[list[float], list[float], dict[str, Tensor], Tensor]:
    """transformers in one process: losses, gradient norms, final weights, and logits of a batch after that."""
    import transformers

    if list(folder.glob("*.safetensors")):
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).train()
    else:
        blueprint = blueprint_of(spec(folder), SEED)
        model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.from_pretrained(folder))
        with torch.no_grad():
            for name, p in model.named_parameters():
                p.copy_(blueprint.fill(name, p.shape, 0, p.numel()).view_as(p))
    decays = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": decays, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=LR, betas=OPTIMIZER.betas, eps=OPTIMIZER.eps)
    losses, norms = [], []
    for step in range(STEPS):
        inputs, targets = batch(step)
        loss = loss_sum(model(inputs).logits, targets)
        loss.backward()
        norms.append(
            float(nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None]))
        )
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    logits = model(batch(STEPS)[0]).logits.detach()
    return losses, norms, {name: p.detach() for name, p in model.named_parameters()}, logits


def train_on_ranks(root: str):
    """(architecture, zero) -> losses, norms, this rank's pieces of the final weights, logits after that."""
    cpu, rank, size = torch.device("cpu"), dist.get_rank(), dist.get_world_size()
    found = {}
    for name in CONFIGS:
        for zero in range(4):
            blueprint = blueprint_of(spec(Path(root, name)), SEED)
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
            losses, norms = [], []
            for step in range(STEPS):
                inputs, targets = (part.chunk(size)[rank] for part in batch(step))
                loss = loss_sum(engine.parts[0](inputs), targets)
                engine.backward(loss, last=True)
                engine.finish()
                norms.append(float(global_norm_sq(engine.grad_norm_sq(), dist.group.WORLD).sqrt()))
                engine.step(LR, 1.0)
                total = loss.detach().clone()
                dist.all_reduce(total)
                losses.append(float(total))
            pieces = {
                key.removeprefix("model.", ): [(p.offsets, p.tensor.clone()) for p in owned.pieces]
                for key, owned in engine.state().items()
                if key.startswith("model.")
            }  # fmt: skip
            with torch.no_grad():
                logits = engine.parts[0](batch(STEPS)[0].chunk(size)[rank])
            found[name, zero] = losses, norms, pieces, logits
    return found


def train_divided(root: str):
    """Architecture -> losses and norms where the ranks share every layer."""
    cpu, size = torch.device("cpu"), dist.get_world_size()
    mesh = make_mesh(MeshShape(tp=size), cpu)
    found = {}
    for name in DIVISIBLE:
        blueprint = blueprint_of(spec(Path(root, name)), SEED)
        model = blueprint.build()
        apply_tensor_parallel(model, mesh.device_mesh("tp"), blueprint.tensor_plan)
        engine = build_engine(
            [model],
            zero=2,
            precision="fp32",
            mesh=mesh,
            device=cpu,
            optimizer=OPTIMIZER,
            accumulation=1,
            fill=blueprint.fill,
        )
        losses, norms = [], []
        for step in range(STEPS):
            inputs, targets = batch(step)
            loss = loss_sum(engine.parts[0](inputs), targets)
            engine.backward(loss, last=True)
            engine.finish()
            norms.append(float(global_norm_sq(engine.grad_norm_sq(), dist.group.WORLD).sqrt()))
            engine.step(LR, 1.0)
            losses.append(loss.item())
        found[name] = losses, norms
    return found


def on_two_ranks(root: str):
    return train_on_ranks(root), train_divided(root)


@pytest.mark.timeout(280)
def test_architectures_train_as_transformers_does_in_one_process(folders):
    """Losses, gradient norms, weights and logits of 5 steps, ZeRO 0-3, from weights and from a seed, unused experts.

    Where transformers declares how to divide layers, losses and norms over two ranks of tp too, tied or not.
    """
    results = run_ranks(on_two_ranks, 2, str(folders), timeout_s=270)
    both = [result[0] for result in results]
    for name in CONFIGS:
        losses, norms, weights, logits = plain_run(folders / name)
        for found in (result[1][name] for result in results if name in DIVISIBLE):
            assert found[0] == pytest.approx(losses, rel=1e-5), (name, "tp")
            assert found[1] == pytest.approx(norms, rel=1e-5), (name, "tp")
        for zero in range(4):
            whole = {key: torch.full_like(weight, torch.nan) for key, weight in weights.items()}
            for found in both:
                assert found[name, zero][0] == pytest.approx(losses, rel=1e-5), (name, zero)
                assert found[name, zero][1] == pytest.approx(norms, rel=1e-5), (name, zero)
                for key, pieces in found[name, zero][2].items():
                    for offsets, piece in pieces:
                        region = tuple(slice(o, o + n) for o, n in zip(offsets, piece.shape, strict=True))
                        whole[key][region] = piece
            together = torch.cat([found[name, zero][3] for found in both])
            torch.testing.assert_close(together, logits, rtol=1e-4, atol=1e-4)
            for key, weight in weights.items():
                if key.endswith("c_attn.bias"):
                    # Softmax does not feel a bias of all keys: its gradient is rounding noise, which Adam makes big.
                    weight[32:64] = whole[key][32:64] = 0
                torch.testing.assert_close(
                    whole[key], weight, rtol=1e-3, atol=1e-4, msg=f"{name} {zero} {key}"
                )


@pytest.mark.parametrize("name", [name for name in CONFIGS if name != "qwen3"])
def test_any_slice_is_that_of_the_stored_weights(folders, name):
    """Tied, fused (experts), and from several files; each slice as transformers loads it."""
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(folders / name, dtype=torch.float32)
    blueprint = blueprint_of(spec(folders / name), SEED)
    assert len(list((folders / name).glob("*.safetensors"))) > 1
    assert blueprint.vocab == VOCAB
    names = dict(model.named_parameters())
    assert [key for key, _ in blueprint.build().named_parameters()] == list(names)
    for key, weight in names.items():
        edges = [0, weight.numel() // 3, weight.numel() // 2 + 1, weight.numel()]
        parts = [blueprint.fill(key, weight.shape, a, b) for a, b in itertools.pairwise(edges)]
        assert torch.equal(torch.cat(parts), weight.flatten()), key


@pytest.mark.parametrize("name", CONFIGS)
def test_initial_values_follow_the_architectures_own_rules(tmp_path, name):
    """Without weights: each parameter's mean and spread are those of transformers' own initialisation."""
    import transformers

    folder = write_config(tmp_path / name, CONFIGS[name])
    first, again = (blueprint_of(spec(folder), seed) for seed in (SEED, SEED))
    other = blueprint_of(spec(folder), SEED + 1)
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.from_pretrained(folder))
    for key, weight in model.named_parameters():
        values = [b.fill(key, weight.shape, 0, weight.numel()) for b in (first, again, other)]
        assert torch.equal(values[0], values[1]), key
        assert torch.equal(values[0], values[2]) == (weight.std(correction=0) == 0), key
        assert values[0].mean().item() == pytest.approx(weight.mean().item(), abs=5e-3), key
        assert values[0].std().item() == pytest.approx(weight.std().item(), rel=0.15, abs=1e-3), key


def test_buffers_have_values_and_their_own_dtype(folders):
    """E21: rotary frequencies, which no file holds, are there in fp32 although parameters have no memory."""
    import transformers

    buffers = dict(blueprint_of(spec(folders / "llama"), SEED).build().named_buffers())
    config = transformers.AutoConfig.from_pretrained(folders / "llama")
    expected = dict(transformers.AutoModelForCausalLM.from_config(config).named_buffers())
    assert buffers.keys() == expected.keys() != set()
    assert all(torch.equal(buffers[name], buffer) for name, buffer in expected.items())


def test_names_that_files_use_for_a_parameter():
    """As it is; by a tied name; without the inner model's prefix; a matrix for each expert, Mixtral's and Qwen's."""
    aliases = {"model.embed.weight": "lm_head.weight", "model.": ""}
    assert sources("model.a", (2,), {"model.a"}, aliases) == ["model.a"]
    assert sources("model.a", (2,), {"a"}, aliases) == ["a"]
    assert sources("model.embed.weight", (2,), {"lm_head.weight"}, aliases) == ["lm_head.weight"]
    assert sources("model.b", (2,), {"a"}, aliases) == []
    experts = [f"x.mlp.experts.{e}.{kind}_proj.weight" for e in range(2) for kind in ("gate", "up")]
    assert sources("x.mlp.experts.gate_up_proj", (2, 6, 4), set(experts), {}) == experts
    assert sources("x.mlp.experts.gate_up_proj", (3, 6, 4), set(experts), {}) == []
    downs = [f"x.block_sparse_moe.experts.{e}.w2.weight" for e in range(2)]
    assert sources("x.mlp.experts.down_proj", (2, 4, 3), set(downs), {}) == downs


def test_folders_that_hold_no_model_are_refused_in_plain_words(folders, tmp_path):
    """What was looked for, where, what was found, and what to do."""

    def refusal(folder: Path | str) -> str:
        with pytest.raises(DistperfError) as caught:
            blueprint_of(spec(folder), SEED).fill("lm_head.weight", (VOCAB, 32), 0, VOCAB * 32)
        return str(caught.value)

    assert "none/config.json is not there (a path is relative to launch.workdir)" in refusal(
        tmp_path / "none"
    )
    odd = tmp_path / "odd"
    assert "has no architecture warp; code in a folder is not run" in refusal(
        write_config(odd, {"model_type": "warp", "auto_map": {"AutoModelForCausalLM": "evil.Model"}})
    )
    assert "no causal language model can be made of it" in refusal(write_config(odd, {"model_type": "clip"}))
    assert "is no config.json of transformers: KeyError('model_type')" in refusal(write_config(odd, {}))
    (odd / "config.json").write_text("{")
    assert "is no config.json of transformers" in refusal(odd)
    write_config(odd, CONFIGS["qwen3"])
    (odd / "pytorch_model.bin").write_bytes(b"")
    assert "pytorch_model.bin, a pickle, which may run code" in refusal(odd)
    (odd / "model.safetensors").write_bytes(b"\xff" * 20)
    assert "model.safetensors: cannot be read as safetensors" in refusal(odd)
    save_file({"lm_head.weight": torch.zeros(VOCAB, 32)}, odd / "model.safetensors")
    assert "hold no model.embed_tokens.weight (97, 32), which config.json asks for" in refusal(odd)
    shard = min((folders / "llama").glob("*.safetensors"))
    assert load_file(shard), "a sane file, for the next one to be odd"
    write_config(odd, {**CONFIGS["llama"], "vocab_size": 96})
    for path in (folders / "llama").glob("model*"):
        (odd / path.name).write_bytes(path.read_bytes())
    assert (
        "model.embed_tokens.weight is (96, 32) by config.json, and model.embed_tokens.weight (97, 32)"
        in refusal(odd)
    )
