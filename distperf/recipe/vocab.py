"""How many token ids a tokenizer has, without the library that runs it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

BYTE_EOD = 256  # end of document; the ids 0..255 are the bytes themselves
BYTE_VOCAB = 257


def tokenizer_vocab(path: Path) -> int:
    """The vocabulary of a tokenizers JSON file: its largest id + 1.

    Raises: OSError where it cannot be read; ValueError where it is no such file.
    """
    try:
        document = json.loads(path.read_bytes())
    except RecursionError:
        raise ValueError("not JSON of a tokenizer: nested too deep") from None
    largest = max(_ids(document), default=-1) if isinstance(document, dict) else -1
    if largest < 0:
        raise ValueError("no model.vocab in it; it takes a tokenizers JSON file (tokenizer.json)")
    return largest + 1


def _ids(document: dict[str, Any]) -> list[int]:
    """All ids of the model's vocabulary (token -> id, or a list of tokens in order) and of the added tokens."""
    model = document.get("model")
    vocab = model.get("vocab") if isinstance(model, dict) else None
    added = document.get("added_tokens")
    ids = (
        list(vocab.values())
        if isinstance(vocab, dict)
        else [len(vocab) - 1]
        if isinstance(vocab, list)
        else []
    )
    if ids:
        ids += (
            [token.get("id") for token in added or () if isinstance(token, dict)]
            if isinstance(added, list)
            else []
        )
    return [number for number in ids if type(number) is int]
