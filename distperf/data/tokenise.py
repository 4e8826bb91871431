"""One part of the documents to shards, in this process or in a worker."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context, parent_process
from pathlib import Path

import numpy as np

from distperf.data.documents import Extent, read_documents
from distperf.data.manifest import Shard
from distperf.data.shards import ShardWriter
from distperf.data.tokenizer import Tokenizer, load_tokenizer
from distperf.errors import DataError
from distperf.recipe.runspec import from_json, to_json


@dataclass(frozen=True)
class Done:
    """What became of a part; kept beside its shards, so that it need not be done again."""

    documents: int
    replaced_bytes: int
    shards: tuple[Shard, ...]


@dataclass(frozen=True)
class Job:
    """Where shards go, and how they are made."""

    folder: Path
    field: str
    shard_tokens: int


def tokenise(
    job: Job, part: int, extents: Sequence[Extent], tokenizer: Tokenizer, read: Callable[[int], None]
) -> Done:
    """Make the shards of a part, each document followed by `eod`; `read` hears how many bytes of it were read.

    Raises: DataError, OSError.
    """
    end, documents, before = np.array([tokenizer.eod], dtype=np.uint32), 0, 0
    replaced = tokenizer.replaced_bytes
    with ShardWriter(job.folder, tokenizer.vocab, job.shard_tokens, f"part-{part:05}-") as writer:
        for extent in extents:
            length = 0  # of the document that is being encoded
            for ids, last in tokenizer.encode(read_documents(extent, job.field)):
                writer.append(ids)
                length += len(ids)
                if last and length:
                    writer.append(end)
                    documents += 1
                length = 0 if last else length
            before += extent.size_bytes
            read(before)
    done = Done(documents, tokenizer.replaced_bytes - replaced, tuple(writer.shards))
    record = record_path(job.folder, part)
    record.with_suffix(".new").write_text(to_json(done))
    record.with_suffix(".new").replace(record)
    return done


def record_path(folder: Path, part: int) -> Path:
    """Where it is kept that a part is done."""
    return folder / f"part-{part:05}.json"


def read_record(folder: Path, part: int) -> Done | None:
    """What became of a part at an earlier try; None where it has to be done."""
    try:
        return from_json(Done, record_path(folder, part).read_text())
    except FileNotFoundError:
        return None


def tokenise_all(
    job: Job,
    parts: Sequence[tuple[int, Sequence[Extent]]],
    tokenizer: Tokenizer,
    workers: int,
    read: Callable[[int], None],
) -> Iterator[tuple[int, Done]]:
    """All parts by so many workers, each as it is done; `read` hears how many bytes of all were read."""
    if workers == 1:
        before = 0
        for part, extents in parts:
            yield part, tokenise(job, part, extents, tokenizer, partial(_after, read, before))
            before += _size(extents)
        return
    yield from _in_workers(job, parts, tokenizer, workers, read)


def _in_workers(
    job: Job,
    parts: Sequence[tuple[int, Sequence[Extent]]],
    tokenizer: Tokenizer,
    workers: int,
    read: Callable[[int], None],
) -> Iterator[tuple[int, Done]]:
    """Fresh processes, since this one may have threads; the first failure ends all."""
    before = 0
    with ProcessPoolExecutor(workers, get_context("spawn"), _begin, (tokenizer.name, tokenizer.hash)) as pool:
        running = {pool.submit(_work, job, part, extents): (part, extents) for part, extents in parts}
        try:
            while running:
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    part, extents = running.pop(future)
                    done = future.result()
                    before += _size(extents)
                    read(before)
                    yield part, done
        except BrokenProcessPool as error:
            raise DataError(
                "a worker was killed while it tokenised, perhaps for its memory: take fewer (--workers). What is done "
                "stays, and the next try goes on from there"
            ) from error
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _after(read: Callable[[int], None], before: int, some: int) -> None:
    read(before + some)


def _size(extents: Sequence[Extent]) -> int:
    return sum(extent.size_bytes for extent in extents)


_tokenizer: Tokenizer | None = None  # of a worker


def _begin(name: str, hash_: str) -> None:
    global _tokenizer
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends a worker without a word; its parent speaks
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # workers are the parallelism
    _tokenizer = load_tokenizer(name)
    if _tokenizer.hash != hash_:
        raise DataError(f"the tokenizer {name} changed")


def _end_with_parent() -> None:
    parent = parent_process()
    assert parent is not None, "this is a worker"
    parent.join()
    os._exit(1)


def _work(job: Job, part: int, extents: Sequence[Extent]) -> Done:
    assert _tokenizer is not None, "a worker begins with _begin"
    return tokenise(job, part, extents, _tokenizer, lambda some: None)
