"""Dropout whose masks are a pure function of what they fall on, not of a generator's state.

Whether an element is dropped depends on the run's seed, the module's name in the whole model, its sample's
position in the endless stream of samples, its own position in the sequence and its feature. So masks are equal on
every mesh, micro-batching and schedule, equal where ranks hold copies and different where they hold parts, the
same again in a recomputation and after a resume, and there is nothing to save.

Shapes: B samples, S rows of positions, D features.

Source: counter-based generators, Salmon et al., SC 2011; SplitMix64, Steele et al., OOPSLA 2014.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from distperf.model.span import WHOLE, Span


class Draws:
    """Which samples the rows of the running forward pass are; shared by a model's Dropout modules.

    Whoever runs a forward pass says so first, and says it again before recomputing one. Modules of another's making
    draw from torch's own generators: these start anew from (seed, first sample) for each micro-batch, so that what
    they draw differs between ranks, is the same again after a resume, and there is no state to save.
    """

    def __init__(self, seed: int, device: torch.device) -> None:
        self.seed = seed
        self._device = device
        self.first = self._stream_position(0)  # () int64; a tensor, since compiled code bakes numbers in

    def at(self, first: int) -> None:
        """The next forward passes are of the samples at stream positions first, first + 1, ..."""
        self.first = self._stream_position(first)
        torch.manual_seed(int.from_bytes(_digest(f"{self.seed}/{first}"), "little"))

    @contextmanager
    def again(self, first: Tensor) -> Iterator[None]:
        """Inside, draws are those of an earlier `first`."""
        now, self.first = self.first, first
        try:
            yield
        finally:
            self.first = now

    def _stream_position(self, first: int) -> Tensor:
        return torch.full((), first, dtype=torch.int64, device=self._device)


class Dropout(nn.Module):
    """Sets a share `p` of elements to zero in training and scales the rest by 1 / (1 - p).

    `span` says which positions the rows are, where a rank holds only some. `attach_draws` comes before use.
    """

    draws: Draws
    key: Tensor
    span: Span

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p
        self.span = WHOLE

    def forward(self, x: Tensor) -> Tensor:
        """Drop from x (B, S, D); same shape and dtype out.

        Cost: peak extra 9 bytes an element, of which the mask, 1 byte, stays for the backward pass. On a CPU
        it takes 0.6 to 1.1 times as long as torch's own dropout.
        """
        if not self.training or self.p == 0.0:
            return x
        samples = self.draws.first + torch.arange(x.shape[0], device=x.device)
        positions = self.span.positions(x.shape[1], x.device)
        drop = drop_mask(self.key, samples, positions, x.shape[2], self.p)
        return x.masked_fill(drop, 0.0) * (1 / (1 - self.p))


def attach_draws(module: nn.Module, draws: Draws, prefix: str = "") -> None:
    """Let each Dropout in `module` draw from `draws`, by its name in the whole model."""
    for name, child in module.named_modules(prefix=prefix):
        if isinstance(child, Dropout):
            digest = _digest(f"{draws.seed}/{name}")
            child.draws = draws
            child.key = torch.full(
                (),
                int.from_bytes(digest, "little", signed=True),
                dtype=torch.int64,
                device=draws.first.device,
            )


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=8).digest()


def drop_mask(key: Tensor, samples: Tensor, positions: Tensor, features: int, p: float) -> Tensor:
    """Mask (B, S, D) bool, true with probability p. key () int64, samples (B,) and positions (S,) int64.

    A row's 64-bit key comes from SplitMix64; its elements from a 32-bit mix of that and the feature, five passes
    over int32.
    """
    rows = mix64(mix64(key + samples)[:, None] + positions)  # (B, S)
    low, high = rows.view(torch.int32).view(*rows.shape, 2).unbind(-1)
    columns = mix64(torch.arange(features, device=key.device)).view(torch.int32)[::2]
    bits = (
        low[..., None] ^ columns
    )  # in place from here: on a CPU a new tensor costs more than the arithmetic
    bits ^= bits >> 16
    bits *= 0x7FEB352D
    bits ^= bits >> 15
    bits *= (high | 1)[..., None]
    return bits < int(p * 2**32) - 2**31


def mix64(value: Tensor) -> Tensor:
    """SplitMix64's step on int64, which wraps as unsigned numbers do. Every input bit moves every output bit."""
    value = value + _signed(0x9E3779B97F4A7C15)
    value = (value ^ ((value >> 30) & (2**34 - 1))) * _signed(0xBF58476D1CE4E5B9)
    value = (value ^ ((value >> 27) & (2**37 - 1))) * _signed(0x94D049BB133111EB)
    return value ^ ((value >> 31) & (2**33 - 1))


def _signed(bits: int) -> int:
    """The int64 of these 64 bits."""
    return bits - 2**64 if bits >= 2**63 else bits
