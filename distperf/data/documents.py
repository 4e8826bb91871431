"""Documents out of files: text, one a file; JSON lines and parquet, one a line or row; packed by gzip or zstd or not.

Everything streams: no more than one document of JSON lines, one block of a text, or one batch of parquet's rows is in
memory.
"""

from __future__ import annotations

import gzip
import importlib
import io
import json
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal, cast

from distperf.data.sources import Source
from distperf.errors import DataError

Kind = Literal["text", "lines", "parquet"]
PACKED = (".gz", ".zst")
ROWS = 256  # of parquet, decoded at a time
BUFFER = 1 << 20


@dataclass(frozen=True)
class Extent:
    """What of a file is read: the lines that begin in bytes [start, stop), or all of it where it cannot be cut."""

    source: Source
    start: int
    stop: int

    @property
    def size_bytes(self) -> int:
        """Of the file as it lies there, packed or not."""
        return self.stop - self.start


def kind_of(path: Path) -> Kind:
    """By its name, but for the ending of what it is packed with."""
    name = path.with_suffix("").name if path.suffix in PACKED else path.name
    if name.endswith((".jsonl", ".ndjson")):
        return "lines"
    return "parquet" if name.endswith(".parquet") else "text"


def can_be_cut(path: Path) -> bool:
    """Whether parts of the file can be read by themselves."""
    return kind_of(path) == "lines" and path.suffix not in PACKED


def read_documents(extent: Extent, field: str) -> Iterator[BinaryIO]:
    """The documents of an extent in order, each as a stream to be read before the next; `field` has their text.

    Raises: DataError naming the file and the place: it cannot be read, has no such field, or changed meanwhile.
    """
    path = extent.source.path
    with _told(path):
        if kind_of(path) == "text":
            with _opened(path) as file:
                yield file
        elif kind_of(path) == "lines":
            yield from _lines(extent, field)
        else:
            yield from _rows(path, field)
        now = path.stat()
    if (now.st_size, now.st_mtime_ns) != (extent.source.size_bytes, extent.source.mtime_ns):
        raise DataError(
            f"{path} changed while it was read: {extent.source.size_bytes} bytes before, {now.st_size} now"
        )


@contextmanager
def _told(path: Path) -> Iterator[None]:
    """What libraries and the system say of a file, as DataError."""
    zstd = sys.modules.get("zstandard")
    damaged = (EOFError, zlib.error, gzip.BadGzipFile, *((zstd.ZstdError,) if zstd else ()))
    try:
        yield
    except damaged as error:
        raise DataError(f"cannot read {path}: its {path.suffix} stream is damaged: {error}") from error
    except OSError as error:
        raise DataError(f"cannot read text {path}: {error.strerror or error}") from error


class _Told(io.RawIOBase):
    """A file whose errors are DataErrors, whoever reads it."""

    def __init__(self, file: Any, path: Path) -> None:
        self._file, self._path = file, path

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        with _told(self._path):
            return int(self._file.readinto(buffer))

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return int(self._file.seek(offset, whence))

    def tell(self) -> int:
        return int(self._file.tell())


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    """The file's bytes, unpacked."""
    with _told(path):
        packed = _unpacking(path)
    with packed, io.BufferedReader(_Told(packed, path), BUFFER) as file:
        yield cast(BinaryIO, file)


def _unpacking(path: Path) -> Any:
    if path.suffix == ".zst":
        return _library("zstandard", path).open(path, "rb")
    return gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb", buffering=0)


def _lines(extent: Extent, field: str) -> Iterator[BinaryIO]:
    path = extent.source.path
    with _opened(path) as file:
        if extent.start:  # a line that began before belongs to the extent before
            file.seek(extent.start - 1)
            file.readline()
        whole, at = not can_be_cut(path), extent.start and file.tell()
        while (whole or at < extent.stop) and (line := file.readline()):
            if line.strip():
                yield io.BytesIO(_text_of(line, field, path, at).encode("utf-8", errors="replace"))
            at += len(line)


def _text_of(line: bytes, field: str, path: Path, at: int) -> str:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}, the line at byte {at}: no JSON: {error}") from error
    text = found.get(field) if isinstance(found, dict) else None
    if not isinstance(text, str):
        has = f"an object with {', '.join(list(found)[:5])}" if isinstance(found, dict) else "no object"
        raise DataError(
            f"{path}, the line at byte {at}: {has}, but no text in {field!r}; name its field (data.field, or --field)"
        )
    return text


def _rows(path: Path, field: str) -> Iterator[BinaryIO]:
    parquet, arrow = _library("pyarrow.parquet", path), _library("pyarrow", path)
    try:
        with _opened(path) as stream:
            file = parquet.ParquetFile(stream if path.suffix not in PACKED else io.BytesIO(stream.read()))
            if field not in file.schema_arrow.names:
                names = ", ".join(file.schema_arrow.names[:5])
                raise DataError(
                    f"{path}: has no column {field!r}, but {names}; name one (data.field, or --field)"
                )
            for batch in file.iter_batches(ROWS, columns=[field]):
                for text in batch.column(0).to_pylist():
                    yield io.BytesIO(_encoded(text, path, field))
    except arrow.ArrowException as error:
        raise DataError(f"cannot read {path} as parquet: {error}") from error


def _encoded(text: Any, path: Path, field: str) -> bytes:
    if text is not None and not isinstance(text, str):
        raise DataError(f"{path}: column {field!r} holds no text, but {type(text).__name__}")
    return (text or "").encode("utf-8", errors="replace")


def _library(name: str, path: Path) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise DataError(f"{path} needs the package {error.name}: pip install 'distperf[data]'") from error
