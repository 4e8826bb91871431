"""Bytes to ids: the byte tokenizer, and any `tokenizers` JSON file. A document streams, in bounded memory."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol

import numpy as np
from numpy.typing import NDArray

from distperf.errors import DataError
from distperf.recipe.vocab import BYTE_EOD, BYTE_VOCAB, tokenizer_vocab

if TYPE_CHECKING:
    from tokenizers import Tokenizer as LibraryTokenizer

BYTE_BLOCK = 2**22
PIECE_BYTES = 2**18  # of text, encoded at a time
BATCH_BYTES = 2**22  # encoded together, over all cores
EOD_NAMES = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|eos|>", "[EOS]")
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


Block = tuple[NDArray[Any], bool]  # ids; whether they are the last ones of a document


class Tokenizer(Protocol):
    """What turns documents into ids below `vocab`; `eod` is the id that ends a document."""

    name: str
    hash: str
    vocab: int
    eod: int
    replaced_bytes: int  # so far: places where text was not UTF-8

    def encode(self, documents: Iterable[BinaryIO]) -> Iterator[Block]:
        """Ids of documents, block by block, without `eod`. An empty document has no block."""

    def prompt(self, text: str, begin: bool) -> list[int]:
        """Ids of a text to go on from; `begin`: with what the tokenizer itself puts before a text."""

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, without special ones; what is no UTF-8 becomes U+FFFD."""


class ByteTokenizer:
    """Every byte is its own id; nothing is decoded, so any file can be trained on."""

    name = hash = "byte"
    vocab = BYTE_VOCAB
    eod = BYTE_EOD
    replaced_bytes = 0

    def encode(self, documents: Iterable[BinaryIO]) -> Iterator[Block]:
        """Ids of documents, block by block."""
        for document in documents:
            for block, last in _marked(iter(lambda: document.read(BYTE_BLOCK), b"")):  # noqa: B023
                yield np.frombuffer(block, dtype=np.uint8), last

    def prompt(self, text: str, begin: bool) -> list[int]:
        """The bytes of a text; nothing is put before it."""
        return list(text.encode())

    def decode(self, ids: Sequence[int]) -> str:
        """The text of bytes."""
        return bytes(token for token in ids if token < BYTE_EOD).decode(errors="replace")


class JsonTokenizer:
    """A tokenizer.json of the `tokenizers` library.

    Text that spells a special token is ordinary text, so no document can forge an end of document. Bytes that
    are not UTF-8 become U+FFFD and are counted.
    """

    def __init__(self, path: Path) -> None:
        """Raises DataError: no library, no such file, not a tokenizer, or no end-of-document token in it."""
        self.name = str(path.absolute())
        self.replaced_bytes = 0
        try:
            content = path.read_bytes()
            self.vocab = tokenizer_vocab(path)
            self._library = _load_library(content)
        except OSError as error:
            raise DataError(f"cannot read the tokenizer {path}: {error.strerror}") from error
        except ImportError as error:
            raise DataError(f"{path} needs the package tokenizers: pip install tokenizers") from error
        except ValueError as error:
            raise DataError(f"{path} is not a tokenizers JSON file: {error}") from error
        self.hash = hashlib.blake2b(content, digest_size=16).hexdigest()
        self.eod = _find_eod(path, self._library)

    def encode(self, documents: Iterable[BinaryIO]) -> Iterator[Block]:
        """Ids of documents, several at once. One longer than PIECE_BYTES is in pieces, cut where a line starts."""
        for batch in _batches(piece for document in documents for piece in _marked(cut_text(document))):
            texts = [piece.decode("utf-8", errors="replace") for piece, _ in batch]
            for (piece, _), text in zip(batch, texts, strict=True):
                self.replaced_bytes += text.count(REPLACEMENT) - piece.count(REPLACEMENT.encode())
            encodings = self._library.encode_batch_fast(texts, add_special_tokens=False)
            for encoding, (_, last) in zip(encodings, batch, strict=True):
                yield np.array(encoding.ids, dtype=np.uint32), last

    def prompt(self, text: str, begin: bool) -> list[int]:
        """Ids of a text, and with `begin` those that the file's post-processor adds."""
        return list(self._library.encode(text, add_special_tokens=begin).ids)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids."""
        return str(self._library.decode(list(ids), skip_special_tokens=True))


def load_tokenizer(name: str) -> Tokenizer:
    """The tokenizer that a recipe names: "byte", or the path of a tokenizers JSON file. Raises DataError."""
    return ByteTokenizer() if name == "byte" else JsonTokenizer(Path(name))


def _marked(pieces: Iterator[bytes]) -> Iterator[tuple[bytes, bool]]:
    """Each piece, and whether it is the last."""
    piece = next(pieces, None)
    while piece is not None:
        following = next(pieces, None)
        yield piece, following is None
        piece = following


def _batches(pieces: Iterable[tuple[bytes, bool]]) -> Iterator[list[tuple[bytes, bool]]]:
    """Pieces in lists of BATCH_BYTES, and what is left."""
    batch, size = [], 0
    for piece, last in pieces:
        batch.append((piece, last))
        size += len(piece)
        if size >= BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def cut_text(document: BinaryIO) -> Iterator[bytes]:
    """A document in pieces of at most PIECE_BYTES, each ending where tokens end anyway: see `_cut`."""
    rest = b""
    while block := document.read(PIECE_BYTES - len(rest)):
        rest += block
        if len(rest) == PIECE_BYTES:
            end = _cut(rest)
            yield rest[:end]
            rest = rest[end:]
    if rest:
        yield rest


def _cut(text: bytes) -> int:
    """Where to end a piece: at the last start of a line, else before a space, else between characters."""
    half = len(text) // 2
    newlines = [match.end() for match in re.finditer(rb"\n(?=\S)", text[half:])]
    if newlines:
        return half + newlines[-1]
    if (space := text.rfind(b" ", half)) > 0:
        return space
    end = len(text) - 1
    while end > len(text) - 4 and text[end] & 0xC0 == 0x80:  # a continuation byte of UTF-8
        end -= 1
    return end


def _load_library(content: bytes) -> LibraryTokenizer:
    from tokenizers import Tokenizer as LibraryTokenizer

    library = LibraryTokenizer.from_buffer(content)
    library.no_truncation()
    library.no_padding()
    library.encode_special_tokens = True
    return library


def _find_eod(path: Path, library: LibraryTokenizer) -> int:
    for name in EOD_NAMES:
        if (found := library.token_to_id(name)) is not None:
            return int(found)
    raise DataError(
        f"{path} has no end-of-document token: none of {', '.join(EOD_NAMES)} is in it. "
        "Add one of them as a special token and save the tokenizer again."
    )
