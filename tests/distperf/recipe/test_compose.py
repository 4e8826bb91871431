"""YAML text -> tree: positions are exact, traps are settled, everything odd is refused with its place."""

import pytest

from distperf.errors import RecipeError
from distperf.recipe.compose import MAX_DEPTH, compose
from distperf.recipe.tree import Mark, Plain, Problem, mark_of, marks, to_data

FILE = Mark("r.yaml", 1, 1)


def read(text: str):
    problems: list[Problem] = []
    node = compose(text, FILE, problems)
    assert problems == []
    return node


def refused(text: str) -> list[str]:
    problems: list[Problem] = []
    try:
        compose(text, FILE, problems)
    except RecipeError as error:
        return list(error.problems)
    return [str(problem) for problem in problems]


def test_scalars_stay_text_and_know_their_quotes():
    """No scalar is turned into anything; plain ones are marked as plain."""
    text = "{a: 010, b: no, c: 12:30, d: 1.10, e: 1e-4, f: '1', g: \"on\", h: ~, i: , j: 2024-01-01}"
    data = to_data(read(text))
    assert list(data.values()) == ["010", "no", "12:30", "1.10", "1e-4", "1", "on", "~", "", "2024-01-01"]
    assert [isinstance(value, Plain) for value in data.values()] == [True] * 5 + [False] * 2 + [True] * 3


def test_every_key_and_value_has_its_place():
    """Lines and columns count from 1, in characters, in block and in flow style."""
    tree = read("# \N{GREEK SMALL LETTER ALPHA}\na:\n  b: [x, {c: y}]\n")
    assert str(mark_of(tree, ("a", "b"), key=True)) == "r.yaml:3:3"
    assert str(mark_of(tree, ("a", "b", 1, "c"))) == "r.yaml:3:14"
    assert str(mark_of(tree, ("a", "zzz"))) == "r.yaml:2:1"
    assert {path: str(mark) for path, mark in marks(tree)} == {"a": "r.yaml:3:3", "a.b": "r.yaml:3:6"}


def test_carriage_returns_are_line_ends():
    """CRLF text has the same tree and places as LF text."""
    assert read("a: 1\r\nb:\r\n  - 2\r\n") == read("a: 1\nb:\n  - 2\n")


@pytest.mark.parametrize(
    ("text", "second", "first"),
    [
        ("a: 1\nb: 2\na: 3\n", "3:1", "1:1"),
        ("x:\n  a: 1\n  'a': 3\n", "3:3", "2:3"),
        ("x: {a: 1, a: 2}", "1:11", "1:5"),
        ("b: &b {a: 1}\nx:\n  <<: *b\n  a: 2\n  a: 3\n", "5:3", "4:3"),
        ("b: &b {a: 1}\nx:\n  <<: *b\n  <<: *b\n", "4:3", "3:3"),
    ],
)
def test_duplicate_keys_are_refused_with_both_places(text: str, second: str, first: str):
    """J03: at any depth, beside a merge key too, and quoted or not."""
    assert len(refused(text)) == 1
    assert f"r.yaml:{second}: duplicate key" in refused(text)[0]
    assert f"first at r.yaml:{first}" in refused(text)[0]


def test_merge_keys_may_be_overridden():
    """J03: a key beside << wins wherever it stands; of several mappings the earlier wins; quoted "<<" is a key."""
    tree = read("a: &a {x: 1, y: 1}\nb: &b {y: 2, z: 2}\nc:\n  z: 3\n  <<: [*a, *b]\nd: {'<<': 4}\n")
    assert to_data(tree)["c"] == {"x": "1", "y": "1", "z": "3"}
    assert to_data(tree)["d"] == {"<<": "4"}
    assert str(mark_of(tree, ("c", "x"))) == "r.yaml:1:11"


def test_anchors_and_aliases_stand_for_what_they_name():
    """An alias is the value of its anchor; an anchor may be set again."""
    assert to_data(read("[&a 1, *a, &a 2, *a]")) == ("1", "1", "2", "2")


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        ("a: &x [*x]", "1:8", "inside of what it names"),
        ("a: &x {<<: *x}", "1:12", "inside of what it names"),
        ("a: *x", "1:4", "no anchor"),
        ("a: 1\n---\nb: 2", "2:1", "second document"),
        ("a: !!python/object:os.system x", "1:4", "tag"),
        ("a: !!str 1", "1:4", "tag"),
        ("a: !mine [1]", "1:4", "tag"),
        ("a: ! x", "1:4", "tag"),
        ("a:\n\tb: 1", "2:1", "tabs"),
        ("a: b: c", "1:5", "mapping values are not allowed here"),
        ("a: [1, 2\nb: 3", "2:2", "not YAML"),
        ("a: 'x", "1:6", "not YAML"),
        ("a: %x", "1:4", "not YAML"),
        ('a: "\\U99999999"', "1:", "beyond all bounds"),
        ('a: "\\ud800"', "1:4", "surrogate"),
        ("a: \x00", "1:4", "not allowed in YAML"),
        ("a: 1\nb: \x1b[0m", "2:4", "not allowed in YAML"),
        ("? [a, b]\n: c", "1:3", "key must be a word"),
        ("? {a: b}\n: c", "1:3", "key must be a word"),
        ("{'': c}", "1:2", "key must be a word"),
        ("a: {<<: 3}", "1:9", "<< merges"),
        ("a: {<<: [3]}", "1:10", "<< merges"),
        pytest.param("a: " + "[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1), "1:44", "levels deep", id="deep"),
        pytest.param("%YAML 9" + "9" * 5000 + ".1\n---\na: 1", "1:", "not YAML", id="version"),
    ],
)
def test_what_a_recipe_does_not_use_is_refused_where_it_stands(text: str, place: str, words: str):
    """Each is one line with file:line:column."""
    (line,) = refused(text)
    assert line.startswith(f"r.yaml:{place}")
    assert words in line
    assert "\n" not in line


def test_alias_bombs_are_refused():
    """Nine aliases of nine aliases of ...: refused by count, not by running out of memory."""
    bomb = "a0: &a0 [x]\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 30))
    assert "once aliases are expanded" in refused(bomb)[0]
    merged = "a0: &a0 {k: [1, 2, 3]}\n" + "".join(
        f"a{i}: &a{i} {{<<: *a{i - 1}, x{i}: *a{i - 1}, y{i}: *a{i - 1}}}\n" for i in range(1, 40)
    )
    assert "once aliases are expanded" in refused(merged)[0]


def test_bytes_of_a_name_that_is_not_utf8_survive():
    """U+DC80..DCFF, as Python writes such bytes, may be escaped."""
    assert to_data(read(r'a: "x\udcff"')) == {"a": "x\udcff"}


def test_an_empty_text_has_no_document():
    """Nothing, blank lines and comments: None."""
    assert [read(text) for text in ("", "\n\n", "# only a comment", "---\n...\n")][:3] == [None] * 3
