"""A Llama-family decoder: pre-norm blocks of grouped-query attention and SwiGLU.

Parameter names are Hugging Face's without the leading `model.` (which there all but `lm_head` have).

Shapes: B batch, S positions, D hidden, H query heads, G key/value heads, K head size (D / H), F ffn,
V vocabulary.

Source: Touvron et al., arXiv:2302.13971 (Llama); RMSNorm arXiv:1910.07467; rotary arXiv:2104.09864; SwiGLU
arXiv:2002.05202; grouped queries arXiv:2305.13245.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from distperf.model.dropout import Dropout
from distperf.model.span import WHOLE, Span
from distperf.model.tensor_plan import TensorPlan
from distperf.recipe.runspec import ModelSpec
from distperf.recipe.stages import Stage
from distperf.recipe.tensor_rules import llama_units


class RMSNorm(nn.Module):
    """x / rms(x) * weight over the last dim. The mean is taken in fp32 whatever the dtype of x."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalise x (..., D); same shape and dtype out."""
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)


@lru_cache(maxsize=16)
def rotary_table(
    rows: int, span: Span, head_size: int, theta: float, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Cosines and sines (S, K) fp32 of every row's angles; both halves of K hold the same K/2 angles.

    Note [No rotary buffers]: the table is a function of the shape, not state of a module. What is not stored
    cannot be left uninitialised by a meta build, be cast to bf16 with the weights, or miss from a checkpoint.
    """
    with torch.inference_mode(False):  # a table first made while sampling may be needed by a backward later
        pairs = torch.arange(0, head_size, 2, dtype=torch.float32, device=device)
        positions = span.positions(rows, device).float()
        angles = torch.outer(positions, theta ** (-pairs / head_size)).repeat(1, 2)
        return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn each pair (x[k], x[k + K/2]) by its position's angle. x (B, heads, S, K); computed in fp32."""
    first, second = x.float().chunk(2, dim=-1)
    return (x * cos + torch.cat((-second, first), dim=-1) * sin).type_as(x)


def causal_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attend from each position to itself and those before it. q (B, H, S, K), k and v (B, G, S, K); as q."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])


class Attention(nn.Module):
    """Causal self-attention with H query heads in G groups, each sharing one key and value head.

    `attend` mixes positions and `span` says which ones the rows are: all of them, unless context parallelism
    sets both.
    """

    attend: Callable[[Tensor, Tensor, Tensor], Tensor]
    span: Span

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.head_size = spec.hidden // spec.heads
        self.rope_theta = spec.rope_theta
        self.attend = causal_attention
        self.span = WHOLE
        self.q_proj = nn.Linear(spec.hidden, spec.heads * self.head_size, bias=False)
        self.k_proj = nn.Linear(spec.hidden, spec.kv_heads * self.head_size, bias=False)
        self.v_proj = nn.Linear(spec.hidden, spec.kv_heads * self.head_size, bias=False)
        self.o_proj = nn.Linear(spec.heads * self.head_size, spec.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Mix positions: x (B, S, D) -> (B, S, D)."""
        q, k, v = (
            proj(x).unflatten(-1, (-1, self.head_size)).transpose(1, 2)
            for proj in (self.q_proj, self.k_proj, self.v_proj)
        )  # (B, H or G, S, K)
        cos, sin = rotary_table(q.shape[2], self.span, self.head_size, self.rope_theta, x.device)
        mixed = self.attend(rotate(q, cos, sin), rotate(k, cos, sin), v)
        out: Tensor = self.o_proj(mixed.transpose(1, 2).flatten(2))
        return out


class FeedForward(nn.Module):
    """SwiGLU: down(silu(gate(x)) * up(x))."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(spec.hidden, spec.ffn, bias=False)
        self.up_proj = nn.Linear(spec.hidden, spec.ffn, bias=False)
        self.down_proj = nn.Linear(spec.ffn, spec.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Transform each position: x (B, S, D) -> (B, S, D), by way of (B, S, F)."""
        out: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class Block(nn.Module):
    """One layer: attention, then feed-forward, each on a normed copy and added to the stream."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(spec.hidden, spec.norm_eps)
        self.self_attn = Attention(spec)
        self.post_attention_layernorm = RMSNorm(spec.hidden, spec.norm_eps)
        self.mlp = FeedForward(spec)
        self.attention_dropout = Dropout(spec.dropout)
        self.mlp_dropout = Dropout(spec.dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Add this layer's two contributions to the residual stream x (B, S, D)."""
        x = x + self.attention_dropout(self.self_attn(self.input_layernorm(x)))
        out: Tensor = x + self.mlp_dropout(self.mlp(self.post_attention_layernorm(x)))
        return out


class Llama(nn.Module):
    """Tokens to logits; or, as one stage of a pipeline, its layers with the embedding or head where it has them.

    A stage's parameters have their names in the whole model. A tied embedding is one parameter of one module, used
    twice in `forward`, rather than one tensor shared by two modules, of which `to_empty` after a meta build would
    quietly make two. Where first and last stage are apart, each has it, under one name.
    """

    def __init__(self, spec: ModelSpec, stage: Stage | None = None) -> None:
        super().__init__()
        stage = stage or Stage(index=0, count=1, start=0, stop=spec.layers)
        ties = stage.is_last and spec.tied_embedding
        self.embed_tokens = nn.Embedding(spec.vocab, spec.hidden) if stage.is_first or ties else None
        self.embed_dropout = Dropout(spec.dropout) if stage.is_first else None
        self.layers = nn.ModuleList()
        for index in range(stage.start, stage.stop):
            self.layers.add_module(str(index), Block(spec))
        self.norm = RMSNorm(spec.hidden, spec.norm_eps) if stage.is_last else None
        has_head = stage.is_last and not spec.tied_embedding
        self.lm_head = nn.Linear(spec.hidden, spec.vocab, bias=False) if has_head else None

    def forward(self, x: Tensor) -> Tensor:
        """Map tokens (B, S) int64 to logits (B, S, V); position s sees positions 0..s.

        A stage takes the residual stream (B, S, D) but for the first, and gives it on but for the last.
        """
        if self.embed_dropout is not None and self.embed_tokens is not None:
            x = self.embed_dropout(self.embed_tokens(x))
        for layer in self.layers:
            x = layer(x)
        return x if self.norm is None else self._logits(self.norm(x))

    def _logits(self, x: Tensor) -> Tensor:
        if self.lm_head is None:
            assert self.embed_tokens is not None, "a last stage without a head of its own is tied"
            return F.linear(x, self.embed_tokens.weight)
        out: Tensor = self.lm_head(x)
        return out


def build_model(spec: ModelSpec, stage: Stage | None = None) -> Llama:
    """The model, or a stage of it, on the meta device: names and shapes. `distperf.model.init` fills it."""
    with torch.device("meta"):
        return Llama(spec, stage)


def shared_by_stages(spec: ModelSpec) -> tuple[str, ...]:
    """Parameters that both the first and the last stage of a pipeline have."""
    return ("embed_tokens.weight",) if spec.tied_embedding else ()


def tensor_plan(spec: ModelSpec) -> TensorPlan:
    """How a Llama, or any part of it, is divided over tensor-parallel ranks."""
    return TensorPlan(
        {
            "embed_tokens": "embedding",
            "*norm": "norm",
            "layers.*.[qkv]_proj": "colwise",
            "layers.*.o_proj": "rowwise",
            "layers.*.gate_proj": "colwise",
            "layers.*.up_proj": "colwise",
            "layers.*.down_proj": "rowwise",
            "lm_head": "head",
        },
        units=llama_units(heads=spec.heads, kv_heads=spec.kv_heads, ffn=spec.ffn),
    )
