"""Datasets of a user's own, for tests of data.factory: sample i begins with the id i."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset


class Rows(Dataset):
    """Samples by number: their own number, then a draw of each generator, then zeros."""

    def __init__(self, count: int, length: int, vocab: int, noise: bool) -> None:
        self.count, self.length, self.vocab, self.noise = count, length, vocab, noise

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> list[int]:
        draws = [
            random.randrange(self.vocab),
            np.random.randint(self.vocab),
            int(torch.randint(self.vocab, ())),
        ]
        row = [index, *(draws if self.noise else [0, 0, 0])]
        return row + [0] * (self.length + 1 - len(row))


def rows(count: int = 40, length: int = 4, vocab: int = 100, noise: bool = False) -> Rows:
    return Rows(count, length, vocab, noise)


class Pairs(Rows):
    """Inputs and targets, of which the first has no loss; tensors, and a tuple."""

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return torch.full((self.length,), index), torch.tensor([-100] + [index] * (self.length - 1))


def pairs(count: int = 40, length: int = 4) -> Pairs:
    return Pairs(count, length, 100, False)


class Bad(Rows):
    """One sample is not what it should be; or reading hangs after 20."""

    def __init__(self, fault: str) -> None:
        super().__init__(40, 4, 100, False)
        self.fault, self.read = fault, 0

    def __getitem__(self, index: int) -> object:
        self.read += 1
        if self.fault == "hangs" and self.read > 20:
            time.sleep(1000)
        if index != 7 or self.fault == "hangs":
            return super().__getitem__(index)
        if self.fault == "raises":
            return self.broken({})
        return {"short": [1, 2], "float": [0.5] * 5, "large": [100] * 5, "text": "words"}[self.fault]

    def broken(self, row: dict[str, int]) -> object:
        return row["missing"]


def bad(fault: str) -> Bad:
    return Bad(fault)


class Numbers(IterableDataset):
    """0, 1, ... up to a count, again and again; writes down every round that it begins, where told to."""

    def __init__(self, count: int, length: int, log: str) -> None:
        self.count, self.length, self.log, self.epoch = count, length, log, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def start(self) -> int:
        return 0

    def __iter__(self) -> Iterator[list[int]]:
        for number in range(self.start(), self.count):
            if self.log:
                with Path(self.log).open("a") as file:
                    file.write(f"{self.epoch}:{number}\n")
            yield [number, self.epoch] + [0] * (self.length - 1)


def numbers(count: int = 40, length: int = 4, log: str = "") -> Numbers:
    return Numbers(count, length, log)


class Kept(Numbers):
    """The same, and it knows how far it is."""

    next_number = 0

    def start(self) -> int:
        start, self.next_number = self.next_number, 0
        return start

    def __iter__(self) -> Iterator[list[int]]:
        for row in super().__iter__():
            self.next_number = row[0] + 1
            yield row
        self.next_number = 0

    def state_dict(self) -> dict[str, int]:
        return {"next": self.next_number}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.next_number = state["next"]


def kept(count: int = 40, length: int = 4, log: str = "") -> Kept:
    return Kept(count, length, log)


def nothing() -> int:
    return 3
