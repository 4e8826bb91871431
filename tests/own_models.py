"""A model of a user's own, with randomness of torch's, for tests of the whole program."""

from __future__ import annotations

import os
from pathlib import Path

from torch import Tensor, nn


class Net(nn.Module):
    """Tokens to logits, by way of a few blocks with dropout; the head is the embedding."""

    def __init__(self, vocab: int, width: int, dropout: float) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.Dropout(dropout)) for _ in range(2)
        )
        self.head = nn.Linear(width, vocab, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = x + block(x)
        return self.head(x)


def build(vocab: int, width: int = 16, dropout: float = 0.0) -> Net:
    return Net(vocab, width, dropout)


class Ledger(nn.Module):
    """Writes the first id of every sample it is given into a file of this process's, step by step."""

    def __init__(self, folder: str, vocab: int) -> None:
        super().__init__()
        self.folder = Path(folder)
        self.embed = nn.Embedding(vocab, 4)
        self.head = nn.Linear(4, vocab)

    def forward(self, tokens: Tensor) -> Tensor:
        with (self.folder / str(os.getpid())).open("a") as file:
            file.write(" ".join(str(int(token)) for token in tokens[:, 0]) + "\n")
        return self.head(self.embed(tokens))


def ledger(folder: str, vocab: int) -> nn.Module:
    return Ledger(folder, vocab)
