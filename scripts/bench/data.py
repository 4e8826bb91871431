"""What reading costs: text to shards by workers, batches against torch's DataLoader over the same tokens, a seek.

    python scripts/bench/data.py [--megabytes 32] [--batches 300] [--datasets]

Words of random letters are the text, a tokenizers JSON file with as many words the tokenizer. The DataLoader reads
samples out of one memory map of the same ids, shuffled, in as many workers. --datasets: `datasets.map` makes ids of
the same text with the same tokenizer, in as many processes; it must be installed, and is none of our dependencies. All
figures are medians of --rounds rounds, in which the variants take turns; the table is Markdown for docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, RandomSampler

from distperf.data.loader import Loader
from distperf.data.manifest import read_manifest
from distperf.data.opening import open_store
from distperf.data.prepare import prepare_text
from distperf.data.tokenizer import load_tokenizer
from distperf.recipe.runspec import DataSpec, TrainSpec

MICRO, SEQ_LEN = 8, 1024
WORDS = 8000


def write_corpus(folder: Path, megabytes: int) -> None:
    """JSON lines of about 4 KB, and a tokenizer that knows their words."""
    draw = random.Random(1)
    words = ["".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=draw.randint(2, 9))) for _ in range(WORDS)]
    vocab = {"[UNK]": 0, "</s>": 1, **{word: at for at, word in enumerate(dict.fromkeys(words), start=2)}}
    special = {"id": 1, "content": "</s>", "special": True}
    special |= dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    model = {"type": "WordLevel", "vocab": vocab, "unk_token": "[UNK]"}
    parts = {"added_tokens": [special], "pre_tokenizer": {"type": "Whitespace"}, "model": model}
    (folder / "tokenizer.json").write_text(json.dumps({"version": "1.0", **parts}))
    with (folder / "text.jsonl").open("w") as file:
        while file.tell() < megabytes << 20:
            file.write(json.dumps({"text": " ".join(draw.choices(words, k=700))}) + "\n")


def prepare(folder: Path, workers: int) -> float:
    """Tokens a second, from the command's start to a complete folder."""
    out = folder / f"shards-{workers}-{time.monotonic_ns()}"
    began = time.perf_counter()
    tokenizer = load_tokenizer(str(folder / "tokenizer.json"))
    prepare_text([str(folder / "text.jsonl")], tokenizer, out, workers=workers)
    return read_manifest(out).tokens / (time.perf_counter() - began)


def datasets_map(folder: Path, workers: int) -> float:
    """Tokens a second of `datasets`, from the JSON lines to its own files of ids; nothing of it kept from before."""
    import datasets  # a peer, installed by hand
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))

    def ids(batch: dict[str, list[str]]) -> dict[str, list[list[int]]]:
        found = [encoding.ids for encoding in tokenizer.encode_batch(batch["text"])]
        return {"ids": found, "count": [len(each) for each in found]}

    with tempfile.TemporaryDirectory() as cache:
        began = time.perf_counter()
        source = datasets.load_dataset(
            "json", data_files=str(folder / "text.jsonl"), split="train", cache_dir=cache
        )
        made = source.map(
            ids, batched=True, remove_columns=["text"], num_proc=workers if workers > 1 else None
        )
        seconds = time.perf_counter() - began
        return sum(made["count"]) / seconds


def ours(shards: Path, workers: int, batches: int) -> Loader:
    spec = DataSpec(
        text=(), tokens=(str(shards),), mixture=(), factory=None, args={}, synthetic=False, tokenizer="byte",
        field="text", seq_len=SEQ_LEN, boundary="mask", workers=workers, worker_timeout_s=60.0,
        validation_share=0.0, validation=(),
    )  # fmt: skip
    train = TrainSpec(batches * 10**6, MICRO, MICRO, 1, 1, None, False, 0)
    return Loader(spec, open_store(spec, WORDS + 2), train, 0, 1)


class Windows(Dataset):
    """What one would write for DataLoader: windows of a memory map."""

    def __init__(self, ids: np.memmap) -> None:
        self.ids = ids

    def __len__(self) -> int:
        return (len(self.ids) - 1) // SEQ_LEN

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        row = torch.from_numpy(self.ids[index * SEQ_LEN : (index + 1) * SEQ_LEN + 1].astype(np.int64))
        return row[:-1], row[1:]


def one_file(shards: Path) -> Path:
    """The ids of all shards, one after the other."""
    path = shards.with_suffix(".ids")
    path.write_bytes(b"".join((shards / shard.file).read_bytes() for shard in read_manifest(shards).shards))
    return path


def rate_of(next_batch: Callable[[], object], batches: int) -> float:
    """Samples a second, once the first batch is there."""
    next_batch()
    began = time.perf_counter()
    for _ in range(batches):
        next_batch()
    return batches * MICRO / (time.perf_counter() - began)


def ours_rate(shards: Path, workers: int, batches: int) -> float:
    loader, steps = ours(shards, workers, batches), itertools.count(1)
    rate = rate_of(lambda: loader.batch(next(steps), 0), batches)
    loader.close()
    return rate


def theirs_rate(ids: Path, workers: int, batches: int) -> float:
    data = Windows(np.memmap(ids, dtype=np.uint16, mode="r"))
    sampler = RandomSampler(data, replacement=True, num_samples=(batches + 1) * MICRO)
    loader = iter(DataLoader(data, MICRO, sampler=sampler, num_workers=workers))
    return rate_of(lambda: next(loader), batches)


def seek_s(loader: Loader) -> float:
    """To the first batch of a step a million epochs on, and out of order."""
    far = random.randrange(10**9, 2 * 10**9)
    began = time.perf_counter()
    loader.batch(far, 0)
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=32)
    parser.add_argument("--batches", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--datasets", action="store_true", help="as a peer of `prepare`; it must be installed"
    )
    args = parser.parse_args()
    found: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_corpus(folder, args.megabytes)
        tokenizer = load_tokenizer(str(folder / "tokenizer.json"))
        prepare_text([str(folder / "text.jsonl")], tokenizer, folder / "shards")
        shards, ids = folder / "shards", one_file(folder / "shards")
        for _ in range(args.rounds):
            for workers in (1, 2):
                found.setdefault(f"prepare, {workers} workers, tokens/s", []).append(prepare(folder, workers))
                if args.datasets:
                    rate = datasets_map(folder, workers)
                    found.setdefault(f"datasets.map, {workers} processes, tokens/s", []).append(rate)
            for workers in (0, 1, 2):
                for what, rate in (("Loader", ours_rate), ("DataLoader", theirs_rate)):
                    source = shards if rate is ours_rate else ids
                    found.setdefault(f"{what}, {workers} workers, samples/s", []).append(
                        rate(source, workers, args.batches)
                    )
            found.setdefault("seek, ms", []).append(1e3 * seek_s(ours(shards, 0, args.batches)))
    print(f"load {os.getloadavg()[0]:.1f}\n\n| what | median (min, max) |\n| --- | --- |")
    for what, values in found.items():
        print(f"| {what} | {statistics.median(values):,.1f} ({min(values):,.1f}, {max(values):,.1f}) |")


if __name__ == "__main__":
    main()
