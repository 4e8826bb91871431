import dataclasses
import math

import pytest
import torch
from torch import Tensor

from distperf.model.init import fill_for
from distperf.model.llama import Llama, build_model, rotary_table, shared_by_stages
from distperf.model.span import WHOLE
from distperf.recipe.estimate import parameter_count
from distperf.recipe.runspec import ModelSpec
from distperf.recipe.stages import stages

TINY = ModelSpec(
    family="llama",
    layers=2,
    hidden=32,
    heads=4,
    kv_heads=2,
    ffn=48,
    vocab=61,
    tied_embedding=False,
    rope_theta=10000.0,
    norm_eps=1e-5,
    dropout=0.0,
)


def filled(spec: ModelSpec, seed: int = 1) -> Llama:
    model = build_model(spec).to_empty(device="cpu")
    fill = fill_for(spec, seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(fill(name, parameter.shape, 0, parameter.numel()).view_as(parameter))
    return model


def reference(weights: dict[str, Tensor], spec: ModelSpec, tokens: Tensor) -> Tensor:
    """The formulas written out for one sequence (S,): complex rotations, a loop over heads, a mask."""
    size, length = spec.hidden // spec.heads, len(tokens)

    def norm(x: Tensor, name: str) -> Tensor:
        return x / torch.sqrt((x * x).mean(-1, keepdim=True) + spec.norm_eps) * weights[name + ".weight"]

    def turn(x: Tensor) -> Tensor:
        pairs = torch.complex(x[:, : size // 2], x[:, size // 2 :])
        frequency = torch.tensor([spec.rope_theta ** (-2 * k / size) for k in range(size // 2)])
        turned = pairs * torch.polar(
            torch.ones(length, size // 2), torch.arange(length)[:, None] * frequency[None]
        )
        return torch.cat((turned.real, turned.imag), dim=1)

    x = weights["embed_tokens.weight"][tokens]
    for layer in range(spec.layers):
        at = f"layers.{layer}."
        y = norm(x, at + "input_layernorm")
        q, k, v = (y @ weights[f"{at}self_attn.{p}_proj.weight"].T for p in "qkv")
        outputs = []
        for head in range(spec.heads):
            group = head // (spec.heads // spec.kv_heads)
            own, shared = (slice(i * size, (i + 1) * size) for i in (head, group))
            scores = turn(q[:, own]) @ turn(k[:, shared]).T / math.sqrt(size)
            scores = scores.masked_fill(torch.ones(length, length).triu(1).bool(), -math.inf)
            outputs.append(scores.softmax(-1) @ v[:, shared])
        x = x + torch.cat(outputs, dim=1) @ weights[at + "self_attn.o_proj.weight"].T
        y = norm(x, at + "post_attention_layernorm")
        gate, up = (y @ weights[f"{at}mlp.{p}_proj.weight"].T for p in ("gate", "up"))
        x = x + (gate * torch.sigmoid(gate) * up) @ weights[at + "mlp.down_proj.weight"].T
    return norm(x, "norm") @ weights["lm_head.weight"].T


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_logits_equal_the_formulas_written_out(kv_heads: int):
    """Grouped queries, rotary positions, norms and SwiGLU equal an independent plain computation."""
    spec = dataclasses.replace(TINY, kv_heads=kv_heads)
    model = filled(spec)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(
                torch.randn(parameter.shape, generator=torch.Generator().manual_seed(3)), alpha=0.2
            )
        tokens = torch.randint(0, spec.vocab, (2, 19), generator=torch.Generator().manual_seed(4))
        expected = torch.stack([reference(model.state_dict(), spec, row) for row in tokens])
        torch.testing.assert_close(model(tokens), expected, rtol=1e-4, atol=1e-4)


def test_a_position_sees_nothing_after_itself():
    """Changing token 7 leaves the logits of positions 0..6 bitwise alone and moves the later ones."""
    model = filled(TINY)
    tokens = torch.arange(12).reshape(1, 12)
    changed = tokens.clone()
    changed[0, 7] = 50
    before, after = model(tokens), model(changed)
    assert torch.equal(before[:, :7], after[:, :7])
    assert not torch.equal(before[:, 7:], after[:, 7:])


@pytest.mark.parametrize(
    ("layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "tied"),
    [
        (1, 8, 1, 1, 8, 3, False),
        (3, 48, 6, 2, 100, 257, True),
        (2, 64, 4, 4, 96, 257, False),
        (32, 4096, 32, 8, 14336, 128256, False),
    ],
)
def test_parameter_count_equals_the_formula(layers, hidden, heads, kv_heads, ffn, vocab, tied):
    """Embedding, two norms and seven matrices a layer, a norm, a head unless tied; 8.03 G for Llama 3 8B."""
    spec = dataclasses.replace(
        TINY,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        ffn=ffn,
        vocab=vocab,
        tied_embedding=tied,
    )
    model = build_model(spec)
    kv_size = kv_heads * (hidden // heads)
    per_layer = 2 * hidden + 2 * hidden * hidden + 2 * hidden * kv_size + 3 * hidden * ffn
    expected = vocab * hidden * (1 if tied else 2) + layers * per_layer + hidden
    assert sum(p.numel() for p in model.parameters()) == expected == parameter_count(spec)
    assert all(p.is_meta for p in model.parameters())
    if vocab == 128256:
        assert expected == 8_030_261_248


def test_a_tied_head_is_the_embedding():
    """One parameter under one name, also after a meta build; its gradient has both uses."""
    model = filled(dataclasses.replace(TINY, tied_embedding=True))
    assert not [name for name, _ in model.named_parameters(remove_duplicate=False) if "lm_head" in name]
    model(torch.tensor([[1, 2, 3]])).sum().backward()
    assert (model.embed_tokens.weight.grad.abs().sum(1) > 0).all()


def test_e21_there_is_no_buffer_to_lose():
    """No buffers; angles are exact fp32 after a meta build, a cast to bf16 and a use while sampling."""
    spec = dataclasses.replace(TINY, rope_theta=12345.0)
    assert list(build_model(spec).buffers()) == []
    with torch.inference_mode():
        filled(spec).to(torch.bfloat16)(torch.zeros(1, 5, dtype=torch.long))
    model = filled(spec)
    model(torch.zeros(1, 5, dtype=torch.long)).sum().backward()
    cos, sin = rotary_table(5, WHOLE, 8, 12345.0, torch.device("cpu"))
    assert cos.dtype == sin.dtype == torch.float32
    torch.testing.assert_close(cos[3, 1], torch.tensor(math.cos(3 * 12345.0**-0.25)))
    assert torch.equal(cos[:, :4], cos[:, 4:])
    assert torch.equal(sin[0], torch.zeros(8))


def test_bf16_follows_fp32():
    """The same weights in bf16 give logits within bf16's rounding, finite and in bf16."""
    model = filled(TINY)
    tokens = torch.arange(40).reshape(2, 20)
    exact = model(tokens)
    rounded = model.to(torch.bfloat16)(tokens)
    assert rounded.dtype == torch.bfloat16
    torch.testing.assert_close(rounded.float(), exact, rtol=0.05, atol=0.02)


@pytest.mark.parametrize("tied", [False, True])
def test_stages_in_a_row_are_the_model(tied):
    """Same parameter names, values and logits, however many layers a stage has; a tied embedding is in two."""
    spec = dataclasses.replace(TINY, layers=4, tied_embedding=tied)
    whole, fill = filled(spec), fill_for(spec, 1)
    tokens = torch.randint(spec.vocab, (2, 5), generator=torch.Generator().manual_seed(0))
    parts = [build_model(spec, stage).to_empty(device="cpu") for stage in stages((1, 2, 1))]
    names = [name for part in parts for name, _ in part.named_parameters()]
    assert sorted(set(names)) == sorted(name for name, _ in whole.named_parameters())
    assert tuple(name for name in set(names) if names.count(name) > 1) == shared_by_stages(spec)
    x = tokens
    with torch.no_grad():
        for part in parts:
            for name, parameter in part.named_parameters():
                parameter.copy_(fill(name, parameter.shape, 0, parameter.numel()).view_as(parameter))
            x = part(x)
        assert torch.equal(x, whole(tokens))
