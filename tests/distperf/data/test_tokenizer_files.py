"""Tokenizers that leave with a model."""

from __future__ import annotations

import json

import pytest

from distperf.data.store import Vocabulary
from distperf.data.tokenizer_files import byte_tokenizer, write_tokenizer
from distperf.errors import DataError


def test_bytes_keep_their_ids():
    """The byte tokenizer of an export gives every byte of a text its own id, and 256 for the end of a document."""
    from tokenizers import Tokenizer

    library = Tokenizer.from_str(json.dumps(byte_tokenizer()))
    text = "".join(map(chr, range(256))) + "\N{SNOWMAN} \n\ttail "
    assert library.encode(text).ids == list(text.encode())
    assert library.decode(list(text.encode())) == text
    assert library.encode("a<|endoftext|>").ids == [97, 256]
    assert library.get_vocab_size() == 257


def test_a_file_that_changed_is_not_passed_on(tmp_path):
    """The tokenizer of the training is meant, not whatever lies in its place now."""
    path = tmp_path / "t.json"
    path.write_text(json.dumps(byte_tokenizer()))
    with pytest.raises(DataError, match="is not the tokenizer any more"):
        write_tokenizer(tmp_path, Vocabulary(str(path), "other", 256))
    with pytest.raises(DataError, match="cannot read the tokenizer"):
        write_tokenizer(tmp_path, Vocabulary(str(tmp_path / "gone.json"), "other", 256))
