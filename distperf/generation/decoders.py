"""Models that are fed token by token. Prompts of a batch are padded at their left, so that all ends meet.

Shapes: B samples, S new positions, T positions so far, V vocabulary, H query heads, G key and value heads, K head
size, D hidden.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from distperf.errors import ModelError
from distperf.model.llama import Attention, Llama
from distperf.model.span import Span


class Decoder(Protocol):
    """What generating needs of a model."""

    def feed(self, tokens: Tensor) -> Tensor:
        """Take the next tokens (B, S) int64, all prompts at first; the logits (B, V) after the last of them."""
        ...


@dataclass(frozen=True)
class From(Span):
    """Rows that follow each other from position `start` on."""

    start: int = 0

    def positions(self, rows: int, device: torch.device) -> Tensor:
        """Positions (rows,) int64."""
        return torch.arange(self.start, self.start + rows, device=device)


def seen(padding: Tensor, start: int, rows: int) -> Tensor:
    """Which positions each of `rows` new ones from `start` on attends to, (B, S, T) bool; padding (B,) at the left.

    Padding sees itself, so that nothing is a mean over nothing; nobody else sees it. Rotary angles count from the
    padding's first position: only distances enter attention.
    """
    new = torch.arange(start, start + rows, device=padding.device)[:, None]
    old = torch.arange(start + rows, device=padding.device)
    return ((old <= new) & (old >= padding[:, None, None])) | (old == new)


class CachedLlama:
    """A Llama that remembers keys and values, in memory for `capacity` positions of each sample.

    Tensor-parallel ranks each remember those of their heads; all get the same logits.
    """

    def __init__(self, model: Llama, padding: Tensor, capacity: int) -> None:
        assert model.norm is not None, "a whole model"
        self._model, self._padding, self._length = model, padding, 0
        self._attentions = [child for child in model.modules() if isinstance(child, Attention)]
        self._layers = [_Remembering(capacity) for _ in self._attentions]
        for attention, layer in zip(self._attentions, self._layers, strict=True):
            attention.attend = layer
        # Logits of the last position only: those of a whole prompt would be its largest tensor by far.
        model.norm.register_forward_pre_hook(_last_row, prepend=True)

    @torch.no_grad()
    def feed(self, tokens: Tensor) -> Tensor:
        """As `Decoder.feed`.

        Cost: 2 * B * G * T * K elements are kept a layer; over tensor-parallel ranks as `apply_tensor_parallel`, and
        the logits are gathered.
        """
        rows = tokens.shape[1]
        mask = seen(self._padding, self._length, rows).unsqueeze(1)
        for attention, layer in zip(self._attentions, self._layers, strict=True):
            attention.span, layer.mask = From(start=self._length), mask
        logits = self._model(tokens)
        self._length += rows
        return _whole(logits)[:, -1]


class _Remembering:
    """Attention over all positions so far, of one layer."""

    def __init__(self, capacity: int) -> None:
        self.mask = torch.empty(0)
        self._capacity, self._length = capacity, 0
        self._held: tuple[Tensor, Tensor] | None = None

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Take q (B, H, S, K), k and v (B, G, S, K); give as q."""
        if self._held is None:
            batch, groups, _, size = k.shape
            self._held = (
                k.new_empty(batch, groups, self._capacity, size),
                v.new_empty(batch, groups, self._capacity, size),
            )
        end = self._length + k.shape[2]
        for held, new in zip(self._held, (k, v), strict=True):
            held[:, :, self._length : end] = new
        self._length = end
        keys, values = (held[:, :, :end] for held in self._held)
        return F.scaled_dot_product_attention(
            q, keys, values, attn_mask=self.mask, enable_gqa=q.shape[1] != k.shape[1]
        )


def _last_row(_module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return (args[0][:, -1:], *args[1:])


class CachedTransformers:
    """A model of transformers, with the cache that the library has for it."""

    def __init__(self, model: nn.Module, padding: Tensor, capacity: int) -> None:
        """Raises ModelError where the model knows fewer positions than `capacity`."""
        config: Any = model.config
        limit = getattr(config, "max_position_embeddings", None)
        if limit is not None and capacity > limit:
            raise ModelError(
                f"prompt and new tokens take {capacity} positions; this model has {limit} (max_position_embeddings). "
                "Ask for fewer with --max-tokens"
            )
        from transformers import DynamicCache

        self._model, self._padding, self._length = model, padding, 0
        takes = inspect.signature(model.forward).parameters
        cache = (
            "cache" if "cache" in takes else "past_key_values"
        )  # the older name, which releases until 5.40 know
        self._options: dict[str, Any] = {cache: DynamicCache(config=config), "use_cache": True}
        if "logits_to_keep" in takes:
            self._options["logits_to_keep"] = 1

    @torch.no_grad()
    def feed(self, tokens: Tensor) -> Tensor:
        """As `Decoder.feed`."""
        rows = tokens.shape[1]
        positions = torch.arange(self._length + rows, device=tokens.device)
        mask = (positions >= self._padding[:, None]).long()
        at = (positions[self._length :] - self._padding[:, None]).clamp(min=0)
        logits = self._model(tokens, attention_mask=mask, position_ids=at, **self._options)
        self._length += rows
        return _whole(logits)[:, -1]


class Recomputing:
    """Any module from tokens to logits: without a cache, every token costs a pass over all before it.

    Padding is at the right here, where a causal model does not see it.
    """

    def __init__(self, model: nn.Module, padding: Tensor) -> None:
        self._model, self._padding = model, padding
        self._tokens = torch.empty(len(padding), 0, dtype=torch.int64, device=padding.device)

    @torch.no_grad()
    def feed(self, tokens: Tensor) -> Tensor:
        """As `Decoder.feed`."""
        self._tokens = torch.cat((self._tokens, tokens), dim=1)
        length = self._tokens.shape[1]
        place = (torch.arange(length, device=tokens.device) + self._padding[:, None]) % length
        logits = _whole(self._model(self._tokens.gather(1, place)))
        last = length - 1 - self._padding
        return logits[torch.arange(len(last), device=last.device), last]


def _whole(logits: Tensor) -> Tensor:
    """Logits of all columns, on every rank."""
    return (logits.full_tensor() if isinstance(logits, DTensor) else logits).float()


def pad_left(prompts: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    """Prompts as one tensor (B, S), with how many zeros stand before each, (B,)."""
    longest = max(map(len, prompts))
    padded = [[0] * (longest - len(prompt)) + list(prompt) for prompt in prompts]
    padding = [longest - len(prompt) for prompt in prompts]
    return torch.tensor(padded, device=device), torch.tensor(padding, device=device)
