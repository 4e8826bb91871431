"""What each kind of field reads and refuses."""

import pytest

from distperf.recipe import kinds
from distperf.recipe.tree import Plain

FLOAT = kinds.number(above=0)
WHOLE = kinds.whole(0)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-4", 1e-4),
        ("1e4", 1e4),
        ("1e+4", 1e4),
        ("1.0e-4", 1e-4),
        ("1E-4", 1e-4),
        ("3", 3.0),
        (".5", 0.5),
        ("5.", 5.0),
    ],
)
def test_numbers_in_any_usual_spelling(text: str, value: float):
    """J01: read as numbers; three of these are text to PyYAML."""
    assert FLOAT.read(Plain(text)) == value


@pytest.mark.parametrize(
    ("text", "value"), [("12", 12), ("1e4", 10_000), ("2.0", 2), ("+3", 3), ("1.5e1", 15), ("0", 0)]
)
def test_whole_numbers(text: str, value: int):
    """A whole number is whole however it is written."""
    assert WHOLE.read(Plain(text)) == value
    assert type(WHOLE.read(Plain(text))) is int


@pytest.mark.parametrize(
    "text",
    [
        "010",
        "0x10",
        "1_000",
        "12:30",
        "1.2.3",
        "nan",
        ".nan",
        "inf",
        "-.inf",
        "1e999",
        "-1e-4",
        "",
        "~",
        "true",
        "1 0",
        "abc",
        "1e",
        "e4",
        "\N{ARABIC-INDIC DIGIT ONE}",
    ],
)
def test_other_spellings_are_refused_for_every_number(text: str):
    """Nothing is guessed: no octal, hexadecimal, underscore, base 60, infinity, or digit outside of ASCII."""
    for kind in (FLOAT, WHOLE):
        with pytest.raises(ValueError, match=r"is .*; it takes a (whole )?number"):
            kind.read(Plain(text))


@pytest.mark.parametrize("text", ["1.5", "1e-4", "1e400", "9223372036854775808", "1e30"])
def test_whole_numbers_are_whole_and_bounded(text: str):
    """Fractions and numbers beyond 64 bits are refused."""
    with pytest.raises(ValueError, match="a whole number"):
        WHOLE.read(Plain(text))
    with pytest.raises(ValueError, match="a whole number"):
        WHOLE.read(Plain("1" * 5000))


def test_a_number_in_quotes_is_refused_with_the_remedy():
    """The message names the spelling without quotes."""
    for kind in (FLOAT, WHOLE, kinds.or_auto(WHOLE), kinds.or_null(FLOAT)):
        with pytest.raises(ValueError, match=r"is '3'; .*write 3 without quotes"):
            kind.read("3")


@pytest.mark.parametrize("word", ["yes", "no", "on", "off", "True", "FALSE", "y", "1", "", "null"])
def test_switches_take_true_and_false_only(word: str):
    """Other words are refused; usual ones with the right spelling."""
    with pytest.raises(ValueError, match="true or false"):
        kinds.flag().read(Plain(word))


def test_a_switch_names_the_right_spelling():
    """yes means true, OFF means false, "true" needs no quotes."""
    for word, meant in ((Plain("yes"), "true"), (Plain("OFF"), "false"), ("true", "true")):
        with pytest.raises(ValueError, match=f"write {meant}, without quotes"):
            kinds.flag().read(word)
    assert kinds.flag().read(Plain("true")) is True


@pytest.mark.parametrize("text", ["no", "on", "010", "12:30", "1.10", "true", "null", "~", "", "1e-4", "  "])
def test_free_text_keeps_its_spelling(text: str):
    """What is text stays as it was written, null and nothing included, and is a plain str."""
    assert kinds.free_text().read(Plain(text)) == text
    assert type(kinds.free_text().read(Plain(text))) is str


@pytest.mark.parametrize("value", [Plain("null"), Plain("~"), Plain(""), "", "a\0b", ("a",), {}])
def test_text_that_names_something_is_not_null(value: object):
    """A path or name is neither null, empty, with a NUL, nor a list."""
    with pytest.raises(ValueError, match="a path"):
        kinds.text("a path").read(value)


@pytest.mark.parametrize("value", [Plain("null"), Plain("~"), Plain(""), Plain("NULL"), None])
def test_null_where_it_is_allowed(value: object):
    """All spellings of YAML."""
    assert kinds.or_null(FLOAT).read(value) is None


def test_null_in_quotes_is_text():
    """'null' is no number."""
    with pytest.raises(ValueError, match="is 'null'; it takes a number"):
        kinds.or_null(FLOAT).read("null")


@pytest.mark.parametrize(
    "value", [(Plain("1"),), (Plain("1"),) * 3, Plain("1"), (Plain("1"), Plain("x")), {}]
)
def test_pairs(value: object):
    """Exactly two numbers."""
    with pytest.raises(ValueError, match="takes"):
        kinds.pair(FLOAT).read(value)
    assert kinds.pair(FLOAT).read((Plain("1"), Plain("2"))) == (1.0, 2.0)


def test_arguments_are_what_they_look_like():
    """What stands without quotes as a number, true, false or null is that, at any depth; the rest is text."""
    found = kinds.arguments().read(
        {
            "depth": Plain("2"),
            "rate": Plain("1e-4"),
            "name": Plain("010"),
            "said": "3",
            "flags": (Plain("true"), Plain("~"), {"a": Plain("-0.5"), "b": Plain("yes")}),
        }
    )
    flags = [True, None, {"a": -0.5, "b": "yes"}]
    assert found == {"depth": 2, "rate": 1e-4, "name": "010", "said": "3", "flags": flags}
    assert type(found["name"]) is str
    assert kinds.arguments().read(Plain("~")) == {}
    with pytest.raises(ValueError, match="1e999; it takes finite numbers"):
        kinds.arguments().read({"a": Plain("1e999")})
