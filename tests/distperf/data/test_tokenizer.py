import io
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distperf.data import tokenizer as module
from distperf.data.tokenizer import ByteTokenizer, cut_text, load_tokenizer
from distperf.errors import DataError
from distperf.recipe.vocab import BYTE_EOD, BYTE_VOCAB


def write_tokenizer(path: Path, specials: tuple[str, ...] = ("<|endoftext|>",)) -> Path:
    """A byte-level BPE without merges: GPT-2's pre-tokenizer, 256 byte tokens, then the special ones."""
    tokenizers = pytest.importorskip("tokenizers")
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    library = tokenizers.Tokenizer(tokenizers.models.BPE({c: i for i, c in enumerate(alphabet)}, []))
    library.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = tokenizers.decoders.ByteLevel()
    library.add_special_tokens(list(specials))
    library.enable_truncation(8)
    library.enable_padding(length=8)
    library.save(str(path))
    return path


def ids_of(tokenizer: module.Tokenizer, text: bytes) -> list[int]:
    blocks = [ids for ids, _ in tokenizer.encode([io.BytesIO(text)])]
    return np.concatenate([*blocks, np.array([], dtype=np.uint32)]).tolist()


@given(st.binary())
def test_bytes_are_their_own_ids(text: bytes):
    """The byte tokenizer is the identity, and its end of document is no byte."""
    tokenizer = load_tokenizer("byte")
    assert ids_of(tokenizer, text) == list(text)
    assert (tokenizer.vocab, tokenizer.eod) == (BYTE_VOCAB, BYTE_EOD) == (257, 256)


def test_a_tokenizers_file_encodes_whole_documents(tmp_path: Path):
    """Nothing is truncated or padded, whatever the file asks for, and text round-trips."""
    tokenizers = pytest.importorskip("tokenizers")
    path = write_tokenizer(tmp_path / "tokenizer.json")
    tokenizer = load_tokenizer(str(path))
    text = "Zwölf Boxkämpfer jagen Viktor\nquer über den Sylter Deich " * 10
    ids = ids_of(tokenizer, text.encode())
    assert len(ids) == len(text.encode())
    assert tokenizers.Tokenizer.from_file(str(path)).decode(ids) == text
    assert (tokenizer.vocab, tokenizer.eod, tokenizer.replaced_bytes) == (257, 256, 0)


def test_text_cannot_forge_an_end_of_document(tmp_path: Path):
    """The spelled-out special token in a document is ordinary text."""
    tokenizer = load_tokenizer(str(write_tokenizer(tmp_path / "t.json")))
    assert tokenizer.eod not in ids_of(tokenizer, b"a<|endoftext|>b")


def test_bytes_that_are_not_utf8_are_replaced_and_counted(tmp_path: Path):
    """Latin-1 text does not stop a run; a genuine U+FFFD is not counted."""
    tokenizer = load_tokenizer(str(write_tokenizer(tmp_path / "t.json")))
    ids_of(tokenizer, b"caf\xe9 \xff " + "\N{REPLACEMENT CHARACTER}".encode())
    assert tokenizer.replaced_bytes == 2


@pytest.mark.parametrize(
    ("names", "eod"), [(("<pad>", "</s>"), 257), (("<eos>",), 256), (("<|end_of_text|>",), 256)]
)
def test_the_end_of_document_is_found_by_name(tmp_path: Path, names: tuple[str, ...], eod: int):
    """Whichever of the well-known names is there."""
    assert load_tokenizer(str(write_tokenizer(tmp_path / "t.json", names))).eod == eod


def test_what_cannot_be_a_tokenizer_is_a_data_error(tmp_path: Path):
    """Missing, not JSON, JSON of something else, without end of document: each is told and named."""
    broken = json.loads(write_tokenizer(tmp_path / "t.json").read_text())
    broken["model"]["type"] = "Nonsense"
    cases = {"text.json": "not json", "other.json": '{"a": 1}', "kind.json": json.dumps(broken)}
    for name, content in cases.items():
        (tmp_path / name).write_text(content)
        with pytest.raises(DataError, match=rf"{name} is not a tokenizers JSON file"):
            load_tokenizer(str(tmp_path / name))
    with pytest.raises(DataError, match=r"cannot read the tokenizer .*none.json: No such file"):
        load_tokenizer(str(tmp_path / "none.json"))
    write_tokenizer(tmp_path / "endless.json", ("<pad>",))
    with pytest.raises(
        DataError, match=r"endless.json has no end-of-document token: none of <\|endoftext\|>"
    ):
        load_tokenizer(str(tmp_path / "endless.json"))


@pytest.mark.parametrize(
    "line", [b"some words on a line\n", b"no-newline at all ", b"x", "ü€𐍈".encode(), b"\n\n  \n"]
)
def test_pieces_join_to_the_document_and_cut_no_character(line: bytes):
    """Long documents of any shape are cut without loss, into pieces of bounded size that decode on their own."""
    text = line * (3 * module.PIECE_BYTES // len(line))
    pieces = list(cut_text(io.BytesIO(text)))
    assert b"".join(pieces) == text
    assert max(map(len, pieces)) <= module.PIECE_BYTES
    assert "".join(piece.decode() for piece in pieces) == text.decode()


@pytest.mark.slow
def test_cutting_changes_no_token(tmp_path: Path):
    """Lines cut into pieces give the ids of the whole, as this tokenizer ends tokens at line ends."""
    tokenizers = pytest.importorskip("tokenizers")
    path = write_tokenizer(tmp_path / "t.json")
    text = "".join(f"line {i} of some text\n\n  and more\n" for i in range(10000))
    assert len(text) > module.PIECE_BYTES
    library = tokenizers.Tokenizer.from_file(str(path))
    library.no_truncation()
    library.no_padding()
    assert ids_of(load_tokenizer(str(path)), text.encode()) == library.encode(text).ids


def test_byte_blocks_are_bounded():
    """A large file never becomes one array."""
    blocks = list(ByteTokenizer().encode([io.BytesIO(bytes(module.BYTE_BLOCK + 1))]))
    assert [(len(block), last) for block, last in blocks] == [(module.BYTE_BLOCK, False), (1, True)]


def test_documents_that_are_encoded_together_stay_apart(tmp_path):
    """Their ids are those of each alone, whatever batch it is in; an empty one has no block, a long one several."""
    tokenizer = load_tokenizer(str(write_tokenizer(tmp_path / "t.json")))
    texts = [b"one", b"", b"a line\n" * (module.BATCH_BYTES // 5), b"two", b" \n", b"three"]
    found: list[list[int]] = [[]]
    for ids, last in tokenizer.encode(map(io.BytesIO, texts)):
        found[-1] += ids.tolist()
        if last:
            found.append([])
    assert found == [ids_of(tokenizer, text) for text in texts if text] + [[]]
