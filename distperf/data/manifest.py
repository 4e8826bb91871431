"""What a folder of token shards says about itself. Standard library only, so that any tool can read it.

manifest.json      written last, so a folder with one is complete
shard-00000.bin    raw little-endian ids, uint16 where the vocabulary allows it, uint32 otherwise
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from distperf.errors import DataError
from distperf.recipe.runspec import from_json, to_json

MANIFEST = "manifest.json"
SCHEMA = 1
ITEM_BYTES = {"uint16": 2, "uint32": 4}


@dataclass(frozen=True)
class Shard:
    """One file of ids."""

    file: str
    tokens: int
    bytes: int
    max_id: int
    blake2b: str


@dataclass(frozen=True)
class Manifest:
    """Everything about the shards but the ids."""

    schema: int
    vocab: int  # ids are below this
    dtype: str  # uint16 | uint32, little-endian
    eod: int  # the id after every document
    tokenizer: str  # "byte", or the file it came from
    tokenizer_hash: str
    documents: int
    tokens: int
    replaced_bytes: int  # bytes of text that were not UTF-8 and became U+FFFD
    fingerprint: str  # of the source files: paths, sizes, times
    content_hash: str  # of the shards: equal for equal tokens
    shards: tuple[Shard, ...]

    @property
    def max_id(self) -> int:
        """The largest id in any shard."""
        return max((shard.max_id for shard in self.shards), default=0)


def dtype_for(vocab: int) -> str:
    """The narrowest dtype that holds every id below `vocab`."""
    return "uint16" if vocab <= 2**16 else "uint32"


def content_hash(shards: tuple[Shard, ...], dtype: str) -> str:
    """One hash for all shards in order."""
    return hashlib.blake2b(
        " ".join([dtype, *(s.blake2b for s in shards)]).encode(), digest_size=16
    ).hexdigest()


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a folder, with its shards present, of full length and with ids its vocabulary allows.

    Raises: DataError naming the file, what was wanted and what was found.
    """
    path = folder / MANIFEST
    try:
        manifest = from_json(Manifest, path.read_text("utf-8"))
    except FileNotFoundError:
        raise DataError(
            f"{folder}: no {MANIFEST}; token shards are made by `distperf data prepare`"
        ) from None
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, AttributeError, TypeError) as error:
        raise DataError(f"{path} is damaged or of another version: {error}") from error
    if manifest.schema != SCHEMA or manifest.dtype not in ITEM_BYTES:
        raise DataError(
            f"{path}: schema {manifest.schema}, dtype {manifest.dtype}; this version reads schema {SCHEMA}"
        )
    for shard in manifest.shards:
        _check_shard(folder, manifest, shard)
    found = sum(shard.tokens for shard in manifest.shards)
    if found != manifest.tokens:
        raise DataError(f"{path}: {manifest.tokens} tokens in all, but its shards hold {found}")
    return manifest


def _check_shard(folder: Path, manifest: Manifest, shard: Shard) -> None:
    path = folder / shard.file
    wanted = shard.tokens * ITEM_BYTES[manifest.dtype]
    try:
        found = path.stat().st_size
    except OSError as error:
        raise DataError(f"cannot read {path} ({wanted} bytes wanted): {error.strerror}") from error
    if not found == wanted == shard.bytes:
        raise DataError(f"{path}: {wanted} bytes wanted, {found} found; make the shards again")
    if shard.max_id >= min(manifest.vocab, 2 ** (8 * ITEM_BYTES[manifest.dtype])):
        raise DataError(
            f"{path}: id {shard.max_id} does not fit vocabulary {manifest.vocab} kept as {manifest.dtype}"
        )


def verify_content(folder: Path, manifest: Manifest) -> None:
    """Read every shard and compare its hash. Raises DataError naming the first that differs."""
    for shard in manifest.shards:
        with (folder / shard.file).open("rb") as file:
            found = hashlib.blake2b(digest_size=16)
            while block := file.read(2**22):
                found.update(block)
        if found.hexdigest() != shard.blake2b:
            raise DataError(
                f"{folder / shard.file}: content is not what {MANIFEST} says; make the shards again"
            )


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Put the manifest into a folder whose shards are complete."""
    with (folder / MANIFEST).open("w", encoding="utf-8") as file:
        file.write(to_json(manifest) + "\n")
        file.flush()
        os.fsync(file.fileno())
