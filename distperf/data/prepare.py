"""Text to token shards: `prepare_text`, and the command behind `distperf data prepare`."""

from __future__ import annotations

import argparse
import fcntl
import os
import secrets
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from distperf.contract import EXIT_INTERRUPTED
from distperf.data.manifest import SCHEMA, Manifest, Shard, content_hash, dtype_for, write_manifest
from distperf.data.parts import cut_parts, part_bytes
from distperf.data.shards import SHARD_TOKENS
from distperf.data.sources import Source, find_sources, fingerprint
from distperf.data.tokenise import Done, Job, read_record, tokenise_all
from distperf.data.tokenizer import Tokenizer, load_tokenizer
from distperf.errors import DataError

FIELD = "text"  # of JSON lines and parquet
BAR = 30  # columns
WORTH_WORKERS = 64 << 20  # bytes of text; below, starting processes takes as long
Progress = Callable[[int, int], None]  # (bytes read, bytes in all)


def prepare_text(
    globs: Sequence[str],
    tokenizer: Tokenizer,
    out_dir: Path,
    progress: Progress = lambda done, total: None,
    **options: Any,
) -> Manifest:
    """Tokenise the files that `globs` match, each document followed by `eod`, into shards in `out_dir`.

    `options` are those of `prepare_sources`.

    Raises: DataError for text that cannot be read, or an `out_dir` that is in use or cannot be written.
    """
    return prepare_sources(find_sources(globs), tokenizer, out_dir, progress=progress, **options)


def prepare_sources(
    sources: Sequence[Source],
    tokenizer: Tokenizer,
    out_dir: Path,
    *,
    field: str = FIELD,
    shard_tokens: int = SHARD_TOKENS,
    workers: int | None = None,
    progress: Progress = lambda done, total: None,
) -> Manifest:
    """`prepare_text` for files already found. The folder is made beside and renamed: complete or absent.

    What a try that was interrupted has done is taken up by the next, if files, tokenizer and sizes are the same.

    `field`: of JSON lines and parquet, what holds the text. `workers`: processes; None: one a CPU, for large text.
    """
    name = fingerprint(sources, tokenizer.hash, field)
    try:
        if out_dir.exists() and any(out_dir.iterdir()):
            raise DataError(f"{out_dir} is not empty; name a new folder or remove this one")
        with _partial(out_dir, f"{name}-{shard_tokens}") as partial:
            job = Job(partial, field, shard_tokens)
            done = _tokenise(sources, tokenizer, job, workers, progress)
            manifest = _finish(sources, tokenizer, partial, done, name)
            partial.rename(out_dir)
    except OSError as error:
        raise DataError(f"cannot write token shards to {out_dir}: {error.strerror}") from error
    return manifest


@contextmanager
def _partial(out_dir: Path, name: str) -> Iterator[Path]:
    """The folder that becomes `out_dir`. It stays for the next try, once a part in it is done; one process has it.

    Where the file system has no locks, it is of this process alone, and goes with it.
    """
    shared = partial = out_dir.parent / f".{out_dir.name}.partial-{name}"
    partial.mkdir(parents=True, exist_ok=True)
    lock = os.open(partial, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise DataError(f"{out_dir}: another process is making it") from None
    except OSError:
        partial = shared.with_name(f"{partial.name}-{os.getpid()}-{secrets.token_hex(4)}")
        partial.mkdir()
    try:
        yield partial
    finally:
        for folder in {shared, partial}:
            if folder.exists() and (folder != shared or not any(folder.glob("part-*.json"))):
                shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _tokenise(
    sources: Sequence[Source], tokenizer: Tokenizer, job: Job, workers: int | None, progress: Progress
) -> list[Done]:
    """What became of every part, in order; those of an earlier try are not done again."""
    total = sum(source.size_bytes for source in sources)
    parts = cut_parts(sources, part_bytes(total))
    found = {part: done for part in range(len(parts)) if (done := read_record(job.folder, part))}
    before = sum(extent.size_bytes for part in found for extent in parts[part])
    missing = [(part, extents) for part, extents in enumerate(parts) if part not in found]
    count = workers or (len(os.sched_getaffinity(0)) if total >= WORTH_WORKERS else 1)
    count = max(1, min(count, len(missing)))
    for part, done in tokenise_all(
        job, missing, tokenizer, count, lambda read: progress(before + read, total)
    ):
        found[part] = done
    return [found[part] for part in range(len(parts))]


def _finish(
    sources: Sequence[Source], tokenizer: Tokenizer, folder: Path, parts: Sequence[Done], name: str
) -> Manifest:
    """Number the shards of all parts through, and write the manifest. Raises DataError where there is no text."""
    shards, dtype = (
        _renamed(folder, [shard for part in parts for shard in part.shards]),
        dtype_for(tokenizer.vocab),
    )
    if not shards:
        raise DataError(f"no text in {len(sources)} files: every document is empty")
    manifest = Manifest(
        schema=SCHEMA,
        vocab=tokenizer.vocab,
        dtype=dtype,
        eod=tokenizer.eod,
        tokenizer=tokenizer.name,
        tokenizer_hash=tokenizer.hash,
        documents=sum(part.documents for part in parts),
        tokens=sum(shard.tokens for shard in shards),
        replaced_bytes=sum(part.replaced_bytes for part in parts),
        fingerprint=name,
        content_hash=content_hash(shards, dtype),
        shards=shards,
    )
    write_manifest(folder, manifest)
    for record in folder.glob("part-*.json"):
        record.unlink()
    return manifest


def _renamed(folder: Path, shards: Sequence[Shard]) -> tuple[Shard, ...]:
    """The shards under their final names; a try that was interrupted here may have renamed some."""
    named = tuple(replace(shard, file=f"shard-{at:05}.bin") for at, shard in enumerate(shards))
    for old, new in zip(shards, named, strict=True):
        if (folder / old.file).exists():
            (folder / old.file).rename(folder / new.file)
    return named


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
        help="text, .jsonl or .parquet, packed as .gz or .zst or not; ** matches any depth",
    )
    parser.add_argument(
        "--field", default=FIELD, help="what holds the text of JSON lines and parquet (default: text)"
    )
    parser.add_argument("--workers", type=int, metavar="N", help="processes (default: as many as CPUs)")
    parser.add_argument("--tokenizer", default="byte", help="byte, or a tokenizers JSON file (default: byte)")
    parser.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="folder to make; must not exist"
    )
    args = parser.parse_args(argv)
    try:
        manifest = prepare_text(
            args.text,
            load_tokenizer(args.tokenizer),
            args.out,
            progress=_show,
            field=args.field,
            workers=args.workers,
        )
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
        filled = BAR * done // max(1, total)
        bar = "#" * filled + "." * (BAR - filled)
        print(f"\r[{bar}] {done / 1e6:,.0f} of {total / 1e6:,.0f} MB", end="", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
