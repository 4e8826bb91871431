"""Writing token shards, and reading them as one long row of tokens."""

from __future__ import annotations

import hashlib
import os
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distperf.data.manifest import ITEM_BYTES, Manifest, Shard, dtype_for, read_manifest
from distperf.errors import DataError

Ids = NDArray[Any]  # any unsigned dtype

SHARD_TOKENS = 2**27  # 256 MiB of uint16: large enough to be few, small enough to copy


class ShardWriter:
    """Cuts a stream of ids into shard files; `shards` is complete after the `with` block."""

    def __init__(
        self, folder: Path, vocab: int, shard_tokens: int = SHARD_TOKENS, prefix: str = "shard-"
    ) -> None:
        self.shards: list[Shard] = []
        self._folder = folder
        self._vocab = vocab
        self._shard_tokens = shard_tokens
        self._prefix = prefix
        self._open: _OpenShard | None = None

    def __enter__(self) -> ShardWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        if self._open is not None:
            self.shards.append(self._open.finish())

    def append(self, ids: Ids) -> None:
        """Add ids, shape (n,). Raises DataError for an id outside the vocabulary, before any is narrowed."""
        if len(ids) and int(ids.max()) >= self._vocab:
            raise DataError(f"token id {ids.max()} is outside the vocabulary of {self._vocab}")
        while len(ids):
            if self._open is None:
                name = f"{self._prefix}{len(self.shards):05}.bin"
                self._open = _OpenShard(self._folder / name, dtype_for(self._vocab))
            room = self._shard_tokens - self._open.tokens
            self._open.write(ids[:room])
            ids = ids[room:]
            if self._open.tokens == self._shard_tokens:
                self.shards.append(self._open.finish())
                self._open = None


class _OpenShard:
    """A shard file while it grows."""

    def __init__(self, path: Path, dtype: str) -> None:
        self.tokens = 0
        self._max_id = 0
        self._hash = hashlib.blake2b(digest_size=16)
        self._dtype = dtype
        self._file = path.open("wb")

    def write(self, ids: Ids) -> None:
        block = ids.astype(np.dtype(self._dtype).newbyteorder("<"))
        self._file.write(block.data)
        self._hash.update(block.data)
        self.tokens += len(ids)
        self._max_id = max(self._max_id, int(ids.max()))

    def finish(self) -> Shard:
        with self._file as file:
            file.flush()
            os.fsync(file.fileno())
        size = self.tokens * ITEM_BYTES[self._dtype]
        return Shard(Path(file.name).name, self.tokens, size, self._max_id, self._hash.hexdigest())


class TokenStore:
    """Shard folders, one after the other, as one row of tokens; memory-mapped, so a seek costs nothing."""

    def __init__(self, folders: Sequence[Path]) -> None:
        """Raises DataError where a folder is incomplete or two were made by different tokenizers."""
        self.manifests = [read_manifest(folder) for folder in folders]
        refuse_other_ids(dict(zip(map(str, folders), self.manifests, strict=True)))
        self.eod = self.manifests[0].eod
        self.max_id = max(manifest.max_id for manifest in self.manifests)
        self._maps: list[Ids] = [  # as plain arrays, of which slices cost a tenth
            np.asarray(np.memmap(folder / shard.file, np.dtype(manifest.dtype).newbyteorder("<"), mode="r"))
            for folder, manifest in zip(folders, self.manifests, strict=True)
            for shard in manifest.shards
            if shard.tokens
        ]
        self._ends = list(accumulate(len(shard) for shard in self._maps))
        self.tokens = self._ends[-1] if self._ends else 0

    @property
    def content_hash(self) -> str:
        """Equal on two nodes when they read the same tokens in the same order."""
        names = " ".join(manifest.content_hash for manifest in self.manifests)
        return hashlib.blake2b(names.encode(), digest_size=16).hexdigest()

    def read(self, start: int, count: int) -> NDArray[np.int64]:
        """Tokens [start, start + count), across shards. Raises DataError for an id the manifest rules out."""
        assert 0 <= start <= start + count <= self.tokens, (start, count, self.tokens)
        out = np.empty(count, dtype=np.int64)
        done = 0
        while done < count:
            index = bisect_right(self._ends, start + done)
            shard = self._maps[index]
            offset = start + done - (self._ends[index] - len(shard))
            piece = shard[offset : offset + count - done]
            out[done : done + len(piece)] = piece
            done += len(piece)
        if count and int(out.max()) > self.max_id:
            raise DataError(
                f"token shards are damaged: id {out.max()} in the {count} tokens from {start}, but the manifest "
                f"has none above {self.max_id}; make the shards again"
            )
        return out


def refuse_other_ids(named: Mapping[str, Manifest]) -> None:
    """Raise DataError where two of these shard folders were made by different tokenizers."""
    (first, wanted), *others = named.items()
    for name, manifest in others:
        if _ids_of(manifest) != _ids_of(wanted):
            raise DataError(
                f"token shards of different tokenizers: {first} has {_who(wanted)}, {name} has {_who(manifest)}"
            )


def _ids_of(manifest: Manifest) -> tuple[int, int, str]:
    return manifest.vocab, manifest.eod, manifest.tokenizer_hash


def _who(manifest: Manifest) -> str:
    return f"{manifest.tokenizer} ({manifest.vocab} ids, end of document {manifest.eod})"
