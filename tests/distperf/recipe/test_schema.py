"""The JSON Schema and the reference page say what loading accepts."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from distperf.recipe.load import load_recipe
from distperf.recipe.reference import reference
from distperf.recipe.schema import known_keys, listed_section, schema_json, section_of
from distperf.recipe.starter import STARTER

EXAMPLES = sorted(Path("distperf/recipe/examples").resolve().glob("*.yaml"))
TYPES = {"object": dict, "array": list, "string": str, "boolean": bool, "null": type(None)}


def accepts(schema: dict[str, Any], value: object, root: dict[str, Any]) -> bool:
    """The few words of JSON Schema that ours uses."""
    if "$ref" in schema:
        return accepts(root["$defs"][schema["$ref"].rpartition("/")[2]], value, root)
    if "allOf" in schema:
        return all(accepts(option, value, root) for option in schema["allOf"])
    if "anyOf" in schema:
        return any(accepts(option, value, root) for option in schema["anyOf"])
    if "enum" in schema or "const" in schema:
        return value in schema.get("enum", [schema.get("const")])
    kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    if not any(_is(value, kind) for kind in kinds):
        return False
    if isinstance(value, dict):
        assert schema["additionalProperties"] is False
        return all(
            any(accepts(inner, item, root) for inner in _inner(schema, key)) for key, item in value.items()
        )
    if isinstance(value, list):
        return all(accepts(schema["items"], item, root) for item in value)
    return not isinstance(value, int | float) or value >= schema.get("minimum", value)


def _inner(schema: dict[str, Any], key: str) -> list[dict[str, Any]]:
    patterns = schema.get("patternProperties", {})
    found = [inner for pattern, inner in patterns.items() if re.search(pattern, key)]
    return found + [inner for name, inner in schema.get("properties", {}).items() if name == key]


def _is(value: object, kind: str) -> bool:
    if kind in ("number", "integer"):
        return (
            isinstance(value, int | float)
            and not isinstance(value, bool)
            and (kind == "number" or value == int(value))
        )
    return isinstance(value, TYPES[kind])


def as_json(path: Path) -> Any:
    """A recipe as an editor reads it: YAML 1.2, where 3e-4 is a number."""

    class Loader(yaml.SafeLoader):
        yaml_implicit_resolvers = {
            key: list(value) for key, value in yaml.SafeLoader.yaml_implicit_resolvers.items()
        }

    pattern = re.compile(r"[-+]?[0-9]+(\.[0-9]*)?([eE][-+]?[0-9]+)?$")
    for first in "-+.0123456789":
        Loader.yaml_implicit_resolvers.setdefault(first, []).insert(0, ("tag:yaml.org,2002:float", pattern))
    return yaml.load(path.read_text(), Loader=Loader)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_schema_accepts_what_loading_accepts(path: Path, tmp_path: Path):
    """Every example, and the starter."""
    schema = schema_json()
    assert accepts(schema, as_json(path), schema)
    starter = tmp_path / "starter.yaml"
    starter.write_text(STARTER)
    assert accepts(schema, as_json(starter), schema)


@pytest.mark.parametrize(
    "text",
    [
        "launch:\n  env: {A: 010, B: no, C: , D: '1'}\n",
        "optimizer:\nlaunch:\n  env:\n",
        "data: {text: null}\n",
        "extends: x\n",
        "script: {path: a.py, args: [1, null, true, x]}\n",
        "train: {grad_clip: null, steps: 1e4}\n",
    ],
)
def test_the_schema_accepts_the_traps(text: str, tmp_path: Path):
    """Text that is spelled like a number, empty sections, null, a file that extends another."""
    path = tmp_path / "r.yaml"
    path.write_text(text)
    schema = schema_json()
    assert accepts(schema, as_json(path), schema)


@pytest.mark.parametrize(
    "text", ["tarin: {}\n", "train: {stpes: 3}\n", "train: {steps: x}\n", "precision: fp64\n", "model: 3\n"]
)
def test_the_schema_refuses_what_loading_refuses(text: str, tmp_path: Path):
    """Unknown keys and wrong types."""
    path = tmp_path / "r.yaml"
    path.write_text(text)
    schema = schema_json()
    assert not accepts(schema, as_json(path), schema)


def test_the_schema_has_a_number_and_a_description_of_every_key():
    """Tools rely on the number, users on the descriptions."""
    schema = schema_json()
    assert schema["schema"] == 1
    assert json.loads(json.dumps(schema)) == schema
    for path, field in known_keys().items():
        assert field.description, path
        assert field.description.endswith("."), path
    sections = [field for field in known_keys().values() if section_of(field) or listed_section(field)]
    assert len(schema["$defs"]) == len(sections)


def test_the_reference_page_is_up_to_date():
    """Made by `python -m distperf.recipe.reference > docs/recipe.md`; names every key."""
    assert Path("docs/recipe.md").read_text() == reference()
    assert all(f"`{path.rpartition('.')[2]}`" in reference() for path in known_keys())


OTHER_DATA = ("tokens", "mixture", "factory", "args", "synthetic")


def test_the_starter_loads_and_shows_every_key_with_its_default(tmp_path: Path):
    """Every section is there, and nothing in it differs from the defaults but for what a user must say."""
    path = tmp_path / "my-run.yaml"
    path.write_text(STARTER)
    recipe = load_recipe(path)
    shown = yaml.safe_load(STARTER)
    shown["optimizer"]["lr"] = shown["optimizer"]["eps"] = None
    for key in known_keys():
        alternatives = ("script", "extends", "model", *(f"data.{other}" for other in OTHER_DATA))
        if not f"{key}.".startswith(tuple(f"{other}." for other in alternatives)):
            value = shown
            for step in key.split("."):
                if value is None or isinstance(value, list):  # sections, shown in a comment
                    break
                assert step in value, key
                value = value[step]
    path.write_text(
        "model: {preset: llama-12m}\ndata: {text: [corpus/*.txt], seq_len: 256}\n"
        "train: {steps: 200, global_batch: 64}\n"
    )
    assert load_recipe(path, ["optimizer.schedule.warmup_steps=20"]) == recipe
