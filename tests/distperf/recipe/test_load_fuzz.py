"""Whatever a file or a flag holds, the answer is a Recipe or a RecipeError."""

import contextlib
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from distperf.errors import RecipeError
from distperf.recipe.load import dump_recipe, load_recipe, script_recipe
from distperf.recipe.resolve import resolve
from distperf.recipe.runspec import RunSpec, from_json, to_json
from distperf.recipe.schema import Recipe, known_keys

FEW = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
pytestmark = pytest.mark.slow
BASE = "model: {preset: llama-1m}\ndata: {text: [a.txt]}\ntrain: {steps: 100, global_batch: 32}\n"
KEYS = sorted(known_keys())
WORDS = st.sampled_from([key.rpartition(".")[2] for key in KEYS] + ["<<", "x", "A", "RANK"])
SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
    | st.sampled_from(["auto", "byte", "llama-1m", "1e-4", "010", "~", "", "wsd", "bf16", "text", "llama"])
)  # fmt: skip
TREES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(WORDS | st.text(max_size=3), inner, max_size=4)
    ),
    max_leaves=12,
)
SECTIONS = st.dictionaries(st.sampled_from([key for key in KEYS if "." not in key]), TREES, max_size=6)
YAML_BITS = st.lists(
    st.sampled_from(
        [
            *"{}[]:,-?&*!|>'\"%@`#~ \n\t",
            "a",
            "<<",
            ": ",
            "- ",
            "\n  ",
            "train",
            "steps",
            "&x",
            "*x",
            "---",
            "...",
            "1",
        ]
    )
)
TEXTS = st.text() | YAML_BITS.map("".join)


def try_loading(path: Path, *sets: str) -> Recipe | None:
    """None where it is refused; a Recipe comes back from its own dump."""
    try:
        recipe = load_recipe(path, sets)
    except RecipeError as refusal:
        problems = refusal.problems
    else:
        problems = ()
    if problems:
        assert all(problem and "\n" not in problem for problem in problems)
        return None
    copy = path.with_name("copy.yaml")
    copy.write_text(dump_recipe(recipe))
    assert load_recipe(copy) == recipe
    return recipe


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "r.yaml"


@FEW
@given(content=st.binary() | TEXTS.map(lambda text: text.encode(errors="surrogatepass")))
def test_any_file(path: Path, content: bytes):
    """Bytes and text, YAML's own characters among them."""
    path.write_bytes(content)
    try_loading(path)


@FEW
@given(text=TEXTS)
def test_any_text_after_a_recipe(path: Path, text: str):
    """What follows sound lines."""
    path.write_text(BASE + text, errors="replace")
    try_loading(path)


@FEW
@given(tree=SECTIONS, flow=st.booleans())
def test_any_document(path: Path, tree: dict[str, Any], flow: bool):
    """Nested data under known and unknown keys, alone and over a sound recipe."""
    path.write_text(yaml.safe_dump(tree, default_flow_style=flow, allow_unicode=False))
    try_loading(path)
    path.with_name("base.yaml").write_text(BASE)
    path.write_text(yaml.safe_dump({**tree, "extends": "base.yaml"}, default_flow_style=flow))
    try_loading(path)


@FEW
@given(
    key=st.sampled_from(KEYS) | st.text(max_size=10),
    value=TEXTS | TREES.map(lambda tree: yaml.safe_dump(tree)),
)
def test_any_flag(path: Path, key: str, value: str):
    """--set with any key and value, and with anything at all."""
    path.write_text(BASE)
    try_loading(path, f"{key}={value}")
    try_loading(path, value)


@FEW
@given(name=st.text(max_size=20), args=st.lists(st.text(max_size=20), max_size=3))
def test_any_script(path: Path, name: str, args: list[str]):
    """Arguments arrive as they are, or (a NUL) are refused."""
    with contextlib.suppress(RecipeError):
        recipe = script_recipe(name, args)
        assert list(recipe.script.args) == args
        assert recipe.script.path == name
        if not any("\ud800" <= char <= "\udfff" for text in (name, *args) for char in text):
            path.write_text(dump_recipe(recipe))
            assert load_recipe(path) == recipe


@FEW
@given(
    steps=st.integers(1, 10**6), batch=st.integers(1, 512), micro=st.none() | st.integers(1, 16),
    world=st.integers(1, 16),
    lr=st.floats(1e-9, 10), schedule=st.sampled_from(["constant", "cosine", "linear", "wsd"]), zero=st.integers(0, 3),
)  # fmt: skip
def test_runspecs_come_back_from_json(path, steps, batch, micro, world, lr, schedule, zero):
    """Where recipe and world fit, the RunSpec holds the batch equation, and survives its JSON."""
    path.write_text(BASE)
    sets = [f"train.steps={steps}", f"train.global_batch={batch}", f"train.micro_batch={micro or 'auto'}"]
    recipe = load_recipe(
        path, [*sets, f"optimizer.lr={lr!r}", f"optimizer.schedule.name={schedule}", f"parallel.zero={zero}"]
    )
    with contextlib.suppress(RecipeError):
        spec = resolve(recipe, run_id="id", world_size=world, checkpoint_dir="/c")
        assert spec.train.global_batch == spec.train.micro_batch * spec.train.accumulation * world
        assert from_json(RunSpec, to_json(spec)) == spec
