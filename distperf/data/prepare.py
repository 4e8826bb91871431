"""Text to token shards: `prepare_text`, and the command behind `distperf data prepare`."""

from __future__ import annotations

import argparse
import os
import secrets
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from distperf.contract import EXIT_INTERRUPTED
from distperf.data.manifest import SCHEMA, Manifest, content_hash, dtype_for, write_manifest
from distperf.data.shards import SHARD_TOKENS, Ids, ShardWriter
from distperf.data.sources import Source, find_sources, fingerprint
from distperf.data.tokenizer import Tokenizer, load_tokenizer
from distperf.errors import DataError

Progress = Callable[[int, int], None]  # (bytes read, bytes in all)


def prepare_text(
    globs: Sequence[str], tokenizer: Tokenizer, out_dir: Path, progress: Progress = lambda done, total: None
) -> Manifest:
    """Tokenise the files that `globs` match, each a document followed by `eod`, into shards in `out_dir`.

    Raises: DataError for text that cannot be read, or an `out_dir` that is in use or cannot be written.
    """
    return prepare_sources(find_sources(globs), tokenizer, out_dir, progress=progress)


def prepare_sources(
    sources: Sequence[Source],
    tokenizer: Tokenizer,
    out_dir: Path,
    *,
    shard_tokens: int = SHARD_TOKENS,
    progress: Progress = lambda done, total: None,
) -> Manifest:
    """`prepare_text` for files already found. The folder is made beside and renamed: complete or absent."""
    partial = out_dir.parent / f".{out_dir.name}.partial-{os.getpid()}-{secrets.token_hex(4)}"
    try:
        if out_dir.exists() and any(out_dir.iterdir()):
            raise DataError(f"{out_dir} is not empty; name a new folder or remove this one")
        partial.mkdir(parents=True)
        manifest = _write(sources, tokenizer, partial, shard_tokens, progress)
        partial.rename(out_dir)
    except OSError as error:
        raise DataError(f"cannot write token shards to {out_dir}: {error.strerror}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return manifest


def _write(
    sources: Sequence[Source], tokenizer: Tokenizer, folder: Path, shard_tokens: int, progress: Progress
) -> Manifest:
    total, done = sum(source.size_bytes for source in sources), 0
    end = np.array([tokenizer.eod], dtype=np.uint32)
    with ShardWriter(folder, tokenizer.vocab, shard_tokens) as writer:
        for source in sources:
            for ids, offset in _read_document(source, tokenizer):
                writer.append(ids)
                progress(done + offset, total)
            writer.append(end)
            done += source.size_bytes
    shards, dtype = tuple(writer.shards), dtype_for(tokenizer.vocab)
    manifest = Manifest(
        schema=SCHEMA,
        vocab=tokenizer.vocab,
        dtype=dtype,
        eod=tokenizer.eod,
        tokenizer=tokenizer.name,
        tokenizer_hash=tokenizer.hash,
        documents=len(sources),
        tokens=sum(shard.tokens for shard in shards),
        replaced_bytes=tokenizer.replaced_bytes,
        fingerprint=fingerprint(sources, tokenizer.hash),
        content_hash=content_hash(shards, dtype),
        shards=shards,
    )
    write_manifest(folder, manifest)
    return manifest


def _read_document(source: Source, tokenizer: Tokenizer) -> Iterator[tuple[Ids, int]]:
    """Ids of a document, block by block, with the number of bytes read so far."""
    try:
        with source.path.open("rb") as document:
            for ids in tokenizer.encode(document):
                yield ids, document.tell()
            read = document.tell()
    except OSError as error:
        raise DataError(f"cannot read text {source.path}: {error.strerror}") from error
    if read != source.size_bytes:
        raise DataError(
            f"{source.path} changed while it was read: {source.size_bytes} bytes before, {read} now"
        )


def main(argv: Sequence[str] | None = None) -> int:
    """`python -m distperf.data.prepare`: 0 done, 1 the data cannot be used, 2 bad usage, 130 Ctrl-C."""
    parser = argparse.ArgumentParser(
        "distperf data prepare", description="Tokenise text files into token shards."
    )
    parser.add_argument(
        "--text",
        action="extend",
        nargs="+",
        required=True,
        metavar="GLOB",
        help="text files; ** matches any depth",
    )
    parser.add_argument("--tokenizer", default="byte", help="byte, or a tokenizers JSON file (default: byte)")
    parser.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="folder to make; must not exist"
    )
    args = parser.parse_args(argv)
    try:
        manifest = prepare_text(args.text, load_tokenizer(args.tokenizer), args.out, progress=_show)
    except DataError as error:
        print(f"distperf: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    print(
        f"\r{args.out}: {manifest.tokens} tokens of {manifest.documents} documents in {len(manifest.shards)} "
        f"shards ({manifest.dtype}, vocabulary {manifest.vocab}, end of document {manifest.eod})",
        file=sys.stderr,
    )
    if manifest.replaced_bytes:
        print(f"{manifest.replaced_bytes} places were not UTF-8 and became U+FFFD", file=sys.stderr)
    return 0


def _show(done: int, total: int) -> None:
    if sys.stderr.isatty():
        print(f"\r{done / 1e6:.0f} of {total / 1e6:.0f} MB", end="", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
