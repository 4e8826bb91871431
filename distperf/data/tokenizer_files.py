"""A tokenizer as files that transformers loads, for a model that leaves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from distperf.data.store import Vocabulary
from distperf.data.tokenizer import load_tokenizer
from distperf.errors import DataError
from distperf.recipe.vocab import BYTE_EOD

FILE = "tokenizer.json"
BYTE_EOD_NAME = "<|endoftext|>"


def write_tokenizer(folder: Path, vocabulary: Vocabulary) -> None:
    """Write tokenizer.json and tokenizer_config.json.

    Raises:
        DataError: the tokenizer's file is gone, or is another one by now.
        OSError: `folder` cannot be written.
    """
    if vocabulary.tokenizer == "byte":
        text, name = json.dumps(byte_tokenizer(), ensure_ascii=False), BYTE_EOD_NAME
    else:
        text, name = _unchanged(vocabulary)
    (folder / FILE).write_text(text, encoding="utf-8")
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": name, "bos_token": name}
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1))


def _unchanged(vocabulary: Vocabulary) -> tuple[str, str]:
    """The text of the tokenizer's file, and the token that ends a document."""
    tokenizer = load_tokenizer(vocabulary.tokenizer)
    if tokenizer.hash != vocabulary.tokenizer_hash:
        raise DataError(
            f"{vocabulary.tokenizer} is not the tokenizer any more that the model was trained with"
        )
    text = Path(vocabulary.tokenizer).read_text(encoding="utf-8")
    added: list[dict[str, Any]] = json.loads(text).get("added_tokens", [])
    names = [token["content"] for token in added if token.get("id") == vocabulary.eod]
    return text, names[0] if names else BYTE_EOD_NAME


def byte_tokenizer() -> dict[str, Any]:
    """The byte tokenizer in the format of `tokenizers`: ids 0..255 are the bytes, 256 ends a document."""
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    special = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": BYTE_EOD, "content": BYTE_EOD_NAME, **special}],
        "normalizer": None,
        "pre_tokenizer": level,
        "post_processor": None,
        "decoder": level,
        "model": {"type": "BPE", "vocab": {_shown(byte): byte for byte in range(256)}, "merges": []},
    }


def _shown(byte: int) -> str:
    """The character that stands for a byte in byte-level vocabularies, GPT-2's way: itself where it is visible."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    if byte in visible:
        return chr(byte)
    return chr(256 + sum(other not in visible for other in range(byte)))
